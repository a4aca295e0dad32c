"""The request that goes out, what a refusal teaches, and the ways in which an answer ends."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from msgspec import structs

from app.race.endpoint import parse_endpoint
from app.race.failures import UpstreamError
from app.race.types import Chunk, RaceSpec, Sampling
from app.race.upstream import Dialect, Timeouts, Upstream, request_body
from tests.fakes.script import Reply
from tests.fakes.vllm import CLOSE, DONE, ERR, FIN, HANG, RAW, RESET, ROLE, SLEEP, TOK, USE, FakeVLLM
from tests.race.helpers import until

SPEC = RaceSpec(
    workload=None,
    prompt="Count to ten.",
    system="Be brief.",
    sampling=Sampling(temperature=0.7, top_p=0.9, seed=42, max_tokens=64, ignore_eos=True),
    schedule="together",
)


# ------------------------------------------------------------------------------------------------ the body
@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("running", [True, False])
def test_p43_both_lanes_ask_for_the_same_but_for_the_model(chat: bool, ids: bool, running: bool) -> None:
    dialect = Dialect(chat=chat, token_ids=ids, continuous_usage=running)
    one, other = request_body(SPEC, "big", dialect), request_body(SPEC, "big-with-draft", dialect)
    assert (one.pop("model"), other.pop("model")) == ("big", "big-with-draft")
    assert one == other


def test_p43_nothing_is_left_to_the_defaults_of_a_server() -> None:
    body = request_body(SPEC, "m", Dialect())
    assert (body["temperature"], body["top_p"], body["seed"], body["max_tokens"]) == (0.7, 0.9, 42, 64)
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert body["extra_body"] == {
        "return_token_ids": True,
        "return_spec_tokens_details": True,
        "ignore_eos": True,
    }
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Count to ten."},
    ]


def test_a_completion_has_the_same_words() -> None:
    body = request_body(SPEC, "m", Dialect(chat=False))
    assert body["prompt"] == "Be brief.\n\nCount to ten."
    assert "messages" not in body


def test_what_a_server_does_not_take_is_left_out() -> None:
    dialect = Dialect(token_ids=False, continuous_usage=False, spec_details=False, ignore_eos=False)
    body = request_body(SPEC, "m", dialect)
    assert body["extra_body"] == {}
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("As of transformers v4.44, default chat template is no longer allowed", {"chat": False}),
        ("no chat_template for this tokenizer", {"chat": False}),
        ("Unknown field: return_token_ids", {"token_ids": False}),
        ("stream_options.continuous_usage_stats: extra fields not permitted", {"continuous_usage": False}),
        ("Unsupported parameter: 'ignore_eos'", {"ignore_eos": False}),
        ("return_spec_tokens_details: Extra inputs are not permitted", {"spec_details": False}),
    ],
)
def test_a_refusal_takes_away_what_it_names_and_nothing_else(message: str, changed: dict[str, bool]) -> None:
    assert Dialect().after_refusal(message) == Dialect(**changed)
    again = Dialect(**changed).after_refusal(message)
    assert again is None  # the same refusal twice is about something else


@pytest.mark.parametrize(
    "message", ["", "max_tokens is too large", "prompt too long", "temperature must be non-negative"]
)
def test_a_refusal_about_something_else_is_not_answered_with_another_request(message: str) -> None:
    assert Dialect().after_refusal(message) is None


# ------------------------------------------------------------------------------------------------ the wire
FAST = Timeouts(connect_s=1.0, first_token_s=0.5, stall_s=0.4)


async def ask(fake: FakeVLLM, timeouts: Timeouts = FAST, spec: RaceSpec = SPEC) -> tuple[list[Chunk], list[bool], Any]:
    """Chunks, whether each sending was a repeat, and the error."""
    chunks: list[Chunk] = []
    sent: list[bool] = []
    upstream = Upstream(parse_endpoint("F", fake.url), timeouts)
    found: Any = None
    try:
        await upstream.run(spec, "m", lambda _, again: sent.append(again), chunks.append)
    except UpstreamError as error:
        found = error
    finally:
        await upstream.close()
    return chunks, sent, found


@pytest.mark.anyio
async def test_an_answer_comes_in_chunks_and_is_asked_for_once() -> None:
    async with FakeVLLM((ROLE, TOK("Hel", 1), TOK("lo", 2), FIN("stop"), USE(3), DONE)) as fake:
        chunks, sent, error = await ask(fake)
        assert error is None
        assert "".join(c.text for c in chunks) == "Hello"
        assert sum(c.tokens or 0 for c in chunks) == 3
        assert chunks[-1].usage is not None
        assert sent == [False]
        (seen,) = fake.posts
        body = seen.json
        assert {name: body[name] for name in ("temperature", "top_p", "seed", "max_tokens")} == {
            "temperature": 0.7,
            "top_p": 0.9,
            "seed": 42,
            "max_tokens": 64,
        }
        assert body["return_token_ids"] is True
        assert "extra_body" not in body


@pytest.mark.anyio
async def test_two_servers_get_the_same_bytes_but_for_the_model() -> None:
    async with FakeVLLM(model="a") as one, FakeVLLM(model="b") as other:
        for fake, model in ((one, "a"), (other, "b")):
            upstream = Upstream(parse_endpoint("F", fake.url), FAST)
            await upstream.run(SPEC, model, lambda _, __: None, lambda _: None)
            await upstream.close()
        bodies = [json.loads(fake.posts[0].body) for fake in (one, other)]
    assert [body.pop("model") for body in bodies] == ["a", "b"]
    assert json.dumps(bodies[0]) == json.dumps(bodies[1])


@pytest.mark.anyio
async def test_the_stamp_of_sending_comes_before_the_first_byte_back() -> None:
    times: list[int] = []
    async with FakeVLLM((ROLE, SLEEP(0.1), TOK("x"), FIN("stop"), DONE)) as fake:
        upstream = Upstream(parse_endpoint("F", fake.url), FAST)
        await upstream.run(SPEC, "m", lambda at, _: times.append(at), lambda c: times.append(c.at_ns))
        await upstream.close()
    assert 0.09e9 < times[1] - times[0] < 0.4e9


@pytest.mark.anyio
async def test_a_server_without_chat_template_is_asked_for_a_completion_and_remembered() -> None:
    async with FakeVLLM(chat_template=False) as fake:
        upstream = Upstream(parse_endpoint("F", fake.url), FAST)
        sent: list[bool] = []
        for _ in range(2):
            await upstream.run(SPEC, "m", lambda _, again: sent.append(again), lambda _: None)
        await upstream.close()
        assert sent == [False, True, False]
        assert [seen.path for seen in fake.posts] == ["/v1/chat/completions", "/v1/completions", "/v1/completions"]


@pytest.mark.anyio
async def test_a_server_that_refuses_one_field_after_the_other_gets_a_plain_request() -> None:
    names = ("return_token_ids", "continuous_usage_stats", "return_spec_tokens_details", "ignore_eos")

    def strict(seen: Any) -> Any:
        named = next((name for name in names if name in seen.body.decode()), None)
        return (
            Reply.error(400, f"Unknown field: {named}", "BadRequestError")
            if named
            else (ROLE, TOK("x"), FIN("stop"), DONE)
        )

    async with FakeVLLM(strict, extras=False) as fake:
        chunks, sent, error = await ask(fake)
        assert error is None
        assert sent == [False, True, True, True, True]
        assert [c.text for c in chunks if c.text] == ["x"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("script", "kind", "text"),
    [
        ((ROLE, TOK("ab"), ERR()), "stream_error", "ab"),  # P08
        ((DONE,), "bad_stream", ""),  # P09
        (
            (
                RAW(": ping\n\n"),
                RAW("retry: 3000\n\n"),
                RAW("event: ping\ndata:\n\n"),
                ROLE,
                TOK("a"),
                FIN("stop"),
                DONE,
            ),
            None,
            "a",
        ),  # P10
        ((ROLE, TOK("a"), RAW("data: {nonsense\n\n")), "bad_stream", "a"),
        ((ROLE, TOK("a"), RAW("event: ping\ndata: {nonsense\n\n"), FIN("stop"), DONE), None, "a"),
        ((ROLE, TOK("a"), CLOSE), "cut_off", "a"),
        ((ROLE, TOK("a"), RESET), "cut_off", "a"),
        ((ROLE, TOK("a")), "cut_off", "a"),  # a clean end of the body without an end of the answer
        ((), "cut_off", ""),
        ((ROLE, TOK("a"), FIN("stop")), None, "a"),  # no [DONE], but a finish reason
        ((ROLE, TOK("a"), DONE), None, "a"),  # P07: [DONE], but no finish reason
        ((ROLE, HANG), "first_token_timeout", ""),
        ((ROLE, TOK("a"), HANG), "stalled", "a"),
    ],
)
async def test_the_ways_in_which_an_answer_ends(script: Any, kind: str | None, text: str) -> None:
    async with FakeVLLM(script) as fake:
        with anyio.fail_after(5):
            chunks, sent, error = await ask(fake)
        assert (error.error.kind if error else None) == kind
        assert "".join(c.text for c in chunks) == text
        assert sent == [False]  # never asked again: a generation would be lost
        assert str(fake.port) not in (error.error.message if error else "")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(body=b"<html>Sign in</html>", content_type="text/html"), "not_a_model_server"),  # P41
        (Reply(body=b"", content_type=""), "not_a_model_server"),
        (Reply.json(200, {"error": {"message": "The model does not exist", "code": 404}}), "model_not_found"),
        (Reply.json(200, {"choices": []}), "not_a_model_server"),
        (Reply.error(404, "The model `x` does not exist.", "NotFoundError"), "model_not_found"),
        (Reply.error(429, "slow", "RateLimit"), "rate_limited"),
        (Reply.error(503, "asleep", "ServiceUnavailable"), "unavailable"),
        (Reply.error(400, "too long", "BadRequestError"), "bad_request"),
        (Reply.json(401, {"error": "Unauthorized"}), "unauthorized"),
        (Reply(status=307, body=b"", headers=(("location", "http://127.0.0.1:9/"),)), "not_a_model_server"),
    ],
)
async def test_the_ways_in_which_a_server_does_not_answer(reply: Reply, kind: str) -> None:
    async with FakeVLLM(reply) as fake:
        _, sent, error = await ask(fake)
        assert error is not None
        assert error.error.kind == kind
        assert len(fake.posts) == len(sent) == 1  # no retries unseen


@pytest.mark.anyio
async def test_a_slow_answer_is_no_stall_as_long_as_tokens_come() -> None:
    pace = [part for _ in range(4) for part in (SLEEP(0.25), TOK("x"))]
    async with FakeVLLM((ROLE, *pace, FIN("stop"), DONE)) as fake:
        chunks, _, error = await ask(fake)
        assert error is None
        assert len([c for c in chunks if c.text]) == 4


@pytest.mark.anyio
async def test_keep_alive_comments_do_not_hide_a_server_that_hangs() -> None:
    # a gateway pings for ever while the engine behind it is dead
    pings = [part for _ in range(40) for part in (SLEEP(0.1), RAW(": ping\n\n"))]
    async with FakeVLLM((ROLE, TOK("a"), *pings, FIN("stop"), DONE)) as fake:
        with anyio.fail_after(8):
            _, _, error = await ask(fake)
        assert error is not None
        assert error.error.kind == "stalled"


@pytest.mark.anyio
async def test_cancelling_closes_the_connection_so_that_the_server_stops() -> None:
    async with FakeVLLM((ROLE, TOK("a"), HANG)) as fake:
        got = anyio.Event()
        upstream = Upstream(parse_endpoint("F", fake.url), FAST)
        async with anyio.create_task_group() as group:
            group.start_soon(upstream.run, SPEC, "m", lambda _, __: None, lambda _: got.set())
            await got.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(1):
            await until(lambda: fake.closed_at)
        await upstream.close()


@pytest.mark.anyio
async def test_p40_abandoned_and_refused_requests_leave_the_pool_free() -> None:
    async with FakeVLLM((ROLE, TOK("a"), TOK("b"), HANG)) as fake:
        upstream = Upstream(parse_endpoint("F", fake.url), Timeouts(connect_s=0.5))
        for _ in range(80):  # more than the pool holds
            with anyio.CancelScope() as scope:
                await upstream.run(SPEC, "m", lambda _, __: None, lambda _, scope=scope: scope.cancel())  # type: ignore[misc]
        fake.script = Reply.error(429, "slow", "RateLimit")
        for _ in range(80):
            with pytest.raises(UpstreamError):
                await upstream.run(SPEC, "m", lambda _, __: None, lambda _: None)
        fake.script = (ROLE, TOK("a"), FIN("stop"), DONE)
        with anyio.fail_after(1):
            await upstream.run(SPEC, "m", lambda _, __: None, lambda _: None)
        await upstream.close()


# ------------------------------------------------------------------------------------------------ cache salt
SALTED = structs.replace(SPEC, cache_salt="5a17")


def test_a_cache_salt_goes_to_both_servers_alike_and_is_left_out_where_none_is_asked_for() -> None:
    one, other = request_body(SALTED, "big", Dialect()), request_body(SALTED, "big-with-draft", Dialect())
    assert one["extra_body"]["cache_salt"] == other["extra_body"]["cache_salt"] == "5a17"
    assert {**one, "model": ""} == {**other, "model": ""}
    assert "cache_salt" not in request_body(SPEC, "big", Dialect())["extra_body"]
    assert "cache_salt" not in request_body(SALTED, "big", Dialect(cache_salt=False))["extra_body"]


@pytest.mark.anyio
async def test_a_server_that_refuses_a_salt_by_name_is_asked_without_it_and_remembered() -> None:
    refusal = Reply.error(400, "Parameter 'cache_salt' is not supported with this instance of vLLM", "BadRequestError")
    async with FakeVLLM() as fake:
        fake.then(refusal)
        upstream = Upstream(parse_endpoint("F", fake.url), FAST)
        for _ in range(2):
            await upstream.run(SALTED, "m", lambda _, __: None, lambda _: None)
        await upstream.close()
    assert ["cache_salt" in post.json for post in fake.posts] == [True, False, False]
    assert all(post.json["return_token_ids"] is True for post in fake.posts)
    assert not upstream.dialect.cache_salt
