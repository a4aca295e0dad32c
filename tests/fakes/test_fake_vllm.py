"""The fake against recordings of real servers: it may not drift from what vLLM sends."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
from pathlib import Path

import anyio
import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.fixtures import HERE, http_body, read, recording
from tests.fakes.metrics import Metrics
from tests.fakes.script import Move, Renderer, Sleep
from tests.fakes.vllm import (
    CLOSE,
    DONE,
    ERR,
    FIN,
    HANG,
    RAW,
    RESET,
    ROLE,
    SLEEP,
    TOK,
    USE,
    FakeThread,
    FakeVLLM,
    Reply,
    full_backlog_port,
    paced,
    refused_port,
    spec_record,
)

pytestmark = pytest.mark.anyio
STREAMS = sorted(
    str(path.relative_to(HERE)).removesuffix(".jsonl.gz")
    for folder in ("sse", "chat")
    for path in (HERE / folder).glob("*.jsonl.gz")
)
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
ALL = ASK | {"return_token_ids": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.mark.parametrize("name", [name for name in STREAMS if "_n2" not in name and "logprobs" not in name])
def test_rendered_steps_equal_the_recorded_bytes(name: str) -> None:
    tape = recording(name)
    first = json.loads(tape.payloads[0][1])
    last = json.loads(tape.payloads[-2][1])
    options = tape.request.get("stream_options") or {}
    renderer = Renderer(
        shape="chat" if "chat" in tape.url else "completion",
        model=first["model"],
        prompt_ids=tape.prompt_ids() or range(48),
        want_ids=tape.request.get("return_token_ids", False),
        want_usage=options.get("include_usage", False),
        want_continuous=options.get("continuous_usage_stats", False),
        fingerprint=last["system_fingerprint"],
        id=first["id"],
        created=first["created"],
    )
    rendered = [data for step in tape.steps() if (data := renderer.render(step))]
    assert rendered == tape.raw()


def test_recorded_pace_is_kept_and_scaled() -> None:
    tape = recording("sse/json_together_speculative")
    total_s = tape.payloads[-1][0] / 1e9
    assert sum(step.s for step in tape.steps() if isinstance(step, Sleep)) == pytest.approx(total_s)
    assert sum(step.s for step in tape.raw_steps(0.5) if isinstance(step, Sleep)) == pytest.approx(total_s / 2)


@pytest.mark.parametrize("name", ["chat/speculative_usage", "sse/sql_solo_speculative", "sse/poem_solo_speculative"])
def test_the_record_is_vllms_own_arithmetic(name: str) -> None:
    real = json.loads(recording(name).payloads[-2][1])["metrics"]["speculative_decoding"]
    assert spec_record(real["per_step_accepted"], real["per_step_drafted"], 4) == real
    renderer = Renderer(shape="chat", want_usage=True, spec_k=4)
    for tokens in (1, *(accepted + 1 for accepted in real["per_step_accepted"])):
        renderer.render(TOK("x" * tokens, tokens))
    made = json.loads(renderer.use(USE(60, spec="auto")).removeprefix(b"data: "))["metrics"]["speculative_decoding"]
    assert made["per_step_accepted"] == real["per_step_accepted"]
    assert made["acceptance_histogram"] == real["acceptance_histogram"]


def test_an_error_frame_is_spaced_like_vllms() -> None:
    lines = read("errors/sigkill_engine_core_mid_stream.jsonl").decode().splitlines()
    real = next(json.loads(line)["data"] for line in lines if '\\"error\\"' in line)
    assert Renderer(shape="chat").render(ERR()) == real.encode() + b"\n\n"


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("unknown_model", "/v1/chat/completions", {"model": "nope", "messages": []}),
        ("unknown_model_stream", "/v1/completions", {"model": "nope", "prompt": "x", "stream": True}),
        ("max_tokens_0", "/v1/completions", {"model": "gemma", "prompt": "x", "max_tokens": 0}),
        ("max_tokens_neg", "/v1/completions", {"model": "gemma", "prompt": "x", "max_tokens": -1}),
        ("missing_prompt", "/v1/completions", {"model": "gemma"}),
        ("chat_messages_missing", "/v1/chat/completions", {"model": "gemma"}),
        ("unknown_route", "/nope", {}),
    ],
)
async def test_refusals_equal_the_recorded_ones(name: str, path: str, body: dict[str, object]) -> None:
    async with FakeVLLM(model="gemma") as fake, httpx.AsyncClient() as client:
        answer = await client.post(fake.root + path, json=body)
    assert (answer.status_code, answer.content) == http_body(f"errors/{name}.json")


async def test_a_wrong_key_is_refused_byte_for_byte_but_date() -> None:
    async with FakeVLLM(api_key="right") as fake:
        stream = await anyio.connect_tcp("127.0.0.1", fake.port)
        await stream.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer wrong\r\n\r\n")
        answer = await stream.receive()
        await stream.aclose()
        async with httpx.AsyncClient(headers={"authorization": "Bearer right"}) as client:
            assert (await client.post(fake.url + "/chat/completions", json=ASK)).status_code == 200
            client.headers["authorization"] = "Bearer wrong"
            assert (await client.get(fake.root + "/metrics")).status_code == 200, "/metrics asks for no key"
    real = read("errors/auth_post_raw.txt").replace(b"\r\n", b"\n").strip().split(b"\n")
    got = answer.replace(b"\r\n", b"\n").strip().split(b"\n")
    assert [line for line in got if not line.startswith(b"date")] == [
        line for line in real if not line.startswith(b"date")
    ]


@pytest.mark.parametrize("name", ["version", "health", "ping", "load", "v1_models"])
async def test_plain_answers_equal_the_recorded_ones(name: str) -> None:
    recorded = json.loads(read(f"misc/baseline_{name}.json"))
    async with FakeVLLM(model="gemma") as fake, httpx.AsyncClient() as client:
        answer = await client.get(fake.root + "/" + name.replace("_", "/"))
    assert answer.status_code == recorded["status"]
    assert list(answer.headers) == list(recorded["headers"])
    if name != "v1_models":
        assert answer.text == recorded["body"]
        return
    ours, real = answer.json()["data"][0], json.loads(recorded["body"])["data"][0]
    assert list(ours) == list(real)
    assert list(ours["permission"][0]) == list(real["permission"][0])


@pytest.mark.parametrize(("name", "path"), [("completion", "completions"), ("chat", "chat/completions")])
async def test_a_whole_answer_has_the_recorded_fields_in_their_order(name: str, path: str) -> None:
    real = json.loads(json.loads(read(f"misc/baseline_{name}_nonstream.json"))["body"])
    body = {"model": "m", "prompt": "hi", "messages": ASK["messages"], "return_token_ids": True}
    async with FakeVLLM() as fake, httpx.AsyncClient() as client:
        ours = (await client.post(f"{fake.url}/{path}", json=body)).json()
    assert list(ours) == list(real)
    assert list(ours["choices"][0]) == list(real["choices"][0])
    assert ours["choices"][0]["token_ids"]
    assert (ours["choices"][0] if name == "completion" else ours)["prompt_token_ids"] == list(range(2, 22))


async def test_tokenize_answers_as_a_real_server_did() -> None:
    """Bodies of vLLM 0.32.0 with the packaged Gemma, asked by hand."""
    async with FakeVLLM(model="gemma", tokenizer=lambda _: [9259]) as fake, httpx.AsyncClient() as client:
        where = fake.root + "/tokenize"
        for asked in ({"prompt": "Hello"}, {"messages": [{"role": "user", "content": "Hello"}]}):
            answer = await client.post(where, json={"model": "gemma"} | asked)
            assert answer.text == '{"count":2,"max_model_len":2048,"tokens":[2,9259],"token_strs":null}'
        wrong = await client.post(where, json={"model": "nope", "prompt": "Hello"})
        empty = await client.post(where, json={"model": "gemma"})
        got = await client.get(where)
    assert (wrong.status_code, wrong.text) == (
        404,
        (
            '{"error":{"message":"The model `nope` does not exist. Valid aliases: gemma.","type":"NotFoundError",'
            '"param":"model","code":404}}'
        ),
    )
    missing = "'msg': 'Field required', 'input': '<dict of 1 items>'}"
    assert (empty.status_code, empty.json()["error"]["message"]) == (
        400,
        (
            f"2 validation errors:\n  {{'type': 'missing', 'loc': 'body.prompt', {missing}\n"
            f"  {{'type': 'missing', 'loc': 'body.messages', {missing}"
        ),
    )
    assert (got.status_code, got.text, got.headers["allow"]) == (405, '{"detail":"Method Not Allowed"}', "POST")


async def test_a_model_without_chat_template_says_so_and_completes() -> None:
    async with FakeVLLM(chat_template=False) as fake, httpx.AsyncClient() as client:
        refused = await client.post(fake.url + "/chat/completions", json=ASK)
        plain = await client.post(fake.url + "/completions", json={"model": "m", "prompt": "hi", "stream": True})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("As of transformers v4.44, default chat template is no")
    assert '"text":"Hello"' in plain.text


async def test_what_is_not_asked_for_or_not_honoured_is_not_sent() -> None:
    async with FakeVLLM() as fake, httpx.AsyncClient() as client:

        async def say(body: dict[str, object]) -> str:
            return (await client.post(fake.url + "/chat/completions", json=body)).text

        everything = await say(ALL)
        assert '"token_ids":[' in everything
        assert everything.count('"completion_tokens":') == 5
        assert '"usage"' not in await say(ASK)
        fake.honour = {"usage"}
        less = await say(ALL)
        assert '"token_ids":[' not in less
        assert less.count('"completion_tokens":') == 1
        fake.extras = False
        assert "token_ids" not in await say(ALL)


async def test_requests_are_kept_byte_for_byte() -> None:
    body = b'{"model":"m" ,  "messages":[{"role":"user","content":"\\u00e9 marker-7"}],"stream":true}'
    async with FakeVLLM() as fake, httpx.AsyncClient() as client:
        fake.on("marker-7", [TOK("seven"), DONE])
        answer = await client.post(fake.url + "/chat/completions", content=body, headers={"X-Odd": "a  b"})
        fake.then([TOK("once"), DONE])
        again = await client.post(fake.url + "/chat/completions", content=body)
        assert "seven" in answer.text
        assert "once" in again.text
        assert fake.posts[0].body == body
        assert b"X-Odd: a  b\r\n" in fake.posts[0].head
        assert [seen.connection for seen in fake.posts] == [1, 1], "keep-alive"
        assert len(fake.posts_with("marker-7")) == 2


async def test_the_peers_closing_is_noticed_at_once() -> None:
    async with FakeVLLM(script=[ROLE, TOK("x"), HANG]) as fake, httpx.AsyncClient() as client:
        async with client.stream("POST", fake.url + "/chat/completions", json=ASK) as answer:
            async for line in answer.aiter_lines():
                if '"x"' in line:
                    break
            assert fake.streaming == 1
            left = time.perf_counter()
        await client.aclose()
        with anyio.fail_after(2):
            while fake.streaming or fake.live:  # noqa: ASYNC110 - the fake may live in another thread
                await anyio.sleep(0.005)
        closed = fake.posts[0].peer_closed_at
        assert closed is not None
        assert closed - left < 0.2


async def test_the_ways_to_break_a_stream() -> None:
    async with FakeVLLM() as fake, httpx.AsyncClient(timeout=0.3) as client:
        for ending, expected in (
            ([RESET], httpx.ReadError),
            ([CLOSE], httpx.RemoteProtocolError),
            ([HANG], httpx.ReadTimeout),
            ([RAW('data: {"id":"half'), CLOSE], httpx.RemoteProtocolError),
        ):
            fake.then([ROLE, TOK("x"), *ending])
            with pytest.raises(expected):
                await client.post(fake.url + "/chat/completions", json=ASK)
        fake.then(Reply(headers_after_s=float("inf")))
        with pytest.raises(httpx.ReadTimeout):
            await client.post(fake.url + "/chat/completions", json=ASK)
        with refused_port() as port, pytest.raises(httpx.ConnectError):
            await client.get(f"http://127.0.0.1:{port}")
        with full_backlog_port() as port, pytest.raises(httpx.ConnectTimeout):
            await client.get(f"http://127.0.0.1:{port}")


async def test_byte_by_byte_is_byte_by_byte() -> None:
    async with FakeVLLM(script=Reply([TOK("🫠"), DONE], byte_by_byte=True)) as fake, httpx.AsyncClient() as client:
        request = client.build_request("POST", fake.url + "/chat/completions", json=ASK)
        answer = await client.send(request, stream=True)
        pieces = [piece async for piece in answer.aiter_raw()]
    assert b"".join(pieces).decode().count("🫠") == 1
    assert len(pieces) > 50


async def test_headers_can_be_late_and_pace_does_not_drift() -> None:
    script = Reply([ROLE, *[step for _ in range(50) for step in (SLEEP(0.01), TOK("x"))], DONE], headers_after_s=0.2)
    async with FakeVLLM(script=script) as fake, httpx.AsyncClient() as client:
        start = time.perf_counter()
        async with client.stream("POST", fake.url + "/chat/completions", json=ASK) as answer:
            headers_s = time.perf_counter() - start
            await answer.aread()
        total_s = time.perf_counter() - start
    assert 0.2 <= headers_s < 0.35
    assert 0.7 <= total_s < 0.9


async def test_tls_is_self_signed() -> None:
    async with FakeVLLM(tls=True) as fake:
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.ConnectError, match="self-signed"):
                await client.get(fake.root + "/health")
        trust = ssl.create_default_context(cafile=HERE / "selfsigned.pem")
        async with httpx.AsyncClient(verify=trust) as client:
            assert (await client.get(fake.root + "/health")).status_code == 200


@pytest.mark.parametrize("name", ["baseline", "speculative"])
def test_metrics_at_rest_are_the_recorded_page(name: str) -> None:
    page = Metrics(model="gemma", spec_k=4 if name == "speculative" else None).render()
    assert page == read(f"metrics/{name}_before.txt").decode()


async def test_counters_move_with_requests() -> None:
    async with FakeVLLM(script=paced(81, every_s=0, per_chunk=4), speculative=4) as fake, httpx.AsyncClient() as client:
        before = _counters((await client.get(fake.root + "/metrics")).text)
        await client.post(fake.url + "/chat/completions", json=ALL)
        after = _counters((await client.get(fake.root + "/metrics")).text)
    growth = {name: after[name] - before[name] for name in after}
    # 81 tokens: a first step of 4 without a draft, 19 of 4 (3 accepted) and one of 1 (none accepted)
    assert growth["vllm:spec_decode_num_drafts"] == 20
    assert growth["vllm:spec_decode_num_draft_tokens"] == 80
    assert growth["vllm:spec_decode_num_accepted_tokens"] == 57
    assert growth["vllm:spec_decode_num_accepted_tokens_per_pos"] == 57
    assert growth["vllm:generation_tokens"] == 81
    assert growth["vllm:prompt_tokens"] == 20


def _counters(page: str) -> dict[str, float]:
    return {
        family.name: sum(sample.value for sample in family.samples if sample.name.endswith("_total"))
        for family in text_string_to_metric_families(page)
        if family.type == "counter" and family.name.startswith("vllm:")
    }


def test_counters_can_lag_be_renamed_and_belong_to_several_engines() -> None:
    metrics = Metrics(spec_k=3, engines=("0", "1"), suffix="", lag_s=0.1)
    metrics.move(Move(100, 300, 150, (80, 50, 20), engine="1"))
    early, _ = metrics.render(), time.sleep(0.15)
    late = metrics.render()
    for page, drafts in ((early, 0.0), (late, 100.0)):
        values = [line for line in page.splitlines() if line.startswith("vllm:spec_decode_num_drafts{")]
        assert len(values) == 2
        assert float(values[1].split()[-1]) - float(values[0].split()[-1]) == drafts
    assert 'accepted_tokens_per_pos{engine="1",model_name="m",position="2"}' in late
    assert 'position="3"' not in late


async def test_answers_that_are_not_streamed() -> None:
    async with FakeVLLM() as fake, httpx.AsyncClient() as client:
        answer = await client.post(fake.url + "/chat/completions", json=ASK | {"stream": False})
    body = answer.json()
    assert body["choices"][0]["message"]["content"] == "Hello world"
    assert body["usage"]["completion_tokens"] == 2


def test_a_thread_of_its_own_and_a_process_of_its_own() -> None:
    with FakeThread() as thread:
        fake = thread.start(FakeVLLM(script=[FIN(), DONE]))
        assert httpx.get(fake.root + "/version").json() == {"version": "0.32.0"}
        thread.stop(fake)
        with pytest.raises(httpx.ConnectError):
            httpx.get(fake.root + "/version")
    command = [sys.executable, "-m", "tests.fakes.vllm", "--rate", "500", "--tokens-per-chunk", "1,4", "--speculative"]
    root = Path(__file__).parent.parent.parent
    with subprocess.Popen([*command, "4"], stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        answer = httpx.post(
            url + "/v1/completions",
            json={
                "model": "fake-model",
                "prompt": "x",
                "max_tokens": 21,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        )
        process.terminate()
        assert process.wait(5) == 0
    assert '"completion_tokens":21' in answer.text
    assert '"num_spec_tokens":4' in answer.text
