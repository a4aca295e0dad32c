"""What the app finds out about a server before a race, with GETs alone; trouble is a state, never an exception."""

from __future__ import annotations

from typing import Any

import pytest

from app.race.endpoint import parse_endpoint
from app.race.failures import UpstreamError
from app.race.lane import LaneServer
from app.race.upstream import Timeouts, Upstream
from tests.fakes.script import DONE, FIN, ROLE, TOK, USE, Reply
from tests.fakes.vllm import FakeVLLM, Metrics, refused_port
from tests.race.helpers import spec

pytestmark = pytest.mark.anyio


def lane_of(url: str, *, method: str | None = None, **rest: Any) -> LaneServer:
    upstream = Upstream(parse_endpoint("F", url, **rest), Timeouts(connect_s=0.5))
    return LaneServer("speculative", upstream, method=method)


async def probed(fake: FakeVLLM, **rest: Any) -> LaneServer:
    lane = lane_of(fake.url, **rest)
    try:
        await lane.probe()
    finally:
        await lane.upstream.close()
    return lane


async def test_a_speculative_server_is_known_by_its_counters() -> None:
    async with FakeVLLM(model="big", speculative=4, max_model_len=4096) as fake:
        state = (await probed(fake)).state
        assert (state.status, state.speculating, state.error) == ("ready", True, None)
        assert (state.identity.model, state.identity.method, state.identity.num_speculative_tokens) == (
            "big",
            "unknown",
            4,
        )
        assert (state.max_model_len, state.version) == (4096, "0.32.0")
        assert state.latency_ms is not None
        assert fake.posts == []  # nothing is generated


async def test_the_method_is_named_where_it_is_known() -> None:
    async with FakeVLLM(speculative=4) as fake:
        assert (await probed(fake, method="ngram")).identity.method == "ngram"


async def test_p16_a_plain_server_does_not_speculate() -> None:
    async with FakeVLLM() as fake:
        state = (await probed(fake)).state
        assert (state.status, state.speculating) == ("ready", False)
        assert (state.identity.method, state.identity.num_speculative_tokens) == (None, None)


@pytest.mark.parametrize("mode", ["404", "401", "500", "html"])
async def test_p17_without_a_metrics_page_nothing_is_claimed(mode: Any) -> None:
    async with FakeVLLM(speculative=4) as fake:
        fake.metrics.mode = mode
        lane = await probed(fake)
        assert (lane.state.status, lane.speculating) == ("ready", None)


@pytest.mark.parametrize("page", ["\t{,\t=le", "vllm:spec_decode_num_drafts_total NaN\n", "\x00\xff", "# HELP\n{}"])
async def test_a_broken_metrics_page_never_raises(page: str) -> None:
    async with FakeVLLM(speculative=4) as fake:
        fake.metrics.text = page
        lane = await probed(fake)
        assert lane.state.status == "ready"


@pytest.mark.parametrize(
    ("reply", "status", "kind"),
    [
        (Reply.error(503, "loading", "ServiceUnavailable"), "starting", "unavailable"),
        (Reply.json(401, {"error": "Unauthorized"}), "down", "unauthorized"),
        (Reply.error(500, "x", "y"), "down", "server_error"),
        (Reply(body=b"<html>Sign in</html>", content_type="text/html"), "down", "not_a_model_server"),
        (Reply(body=b"", content_type=""), "down", "not_a_model_server"),
        (Reply.json(200, {"data": []}), "down", "model_not_found"),
        (Reply.json(200, {"data": None}), "down", "not_a_model_server"),
        (Reply.json(200, {"data": [5]}), "down", "not_a_model_server"),
        (Reply.json(200, {"data": [{}]}), "down", "not_a_model_server"),
        (Reply.json(200, []), "down", "not_a_model_server"),
        (Reply.json(200, "x"), "down", "not_a_model_server"),
        (Reply(body=b"[" * 100_000, content_type="application/json"), "down", "not_a_model_server"),
        (Reply(status=307, body=b"", headers=(("location", "http://127.0.0.1:9/"),)), "down", "not_a_model_server"),
    ],
)
async def test_p23_trouble_is_seen_before_the_click_and_never_raised(reply: Reply, status: str, kind: str) -> None:
    async with FakeVLLM() as fake:
        fake.routes["/v1/models"] = reply
        state = (await probed(fake)).state
        assert (state.status, state.error.kind if state.error else None) == (status, kind)
        assert state.detail
        assert str(fake.port) not in state.detail


async def test_a_server_that_is_not_there_is_down() -> None:
    with refused_port() as port:
        lane = lane_of(f"http://127.0.0.1:{port}")
        state = await lane.probe()
        await lane.upstream.close()
    assert state.status == "down"
    assert state.error is not None
    assert state.error.kind == "connection_refused"


async def test_a_model_that_is_not_served_is_named() -> None:
    async with FakeVLLM(model="big") as fake:
        state = (await probed(fake, model="small")).state
        assert state.error is not None
        assert state.error.kind == "model_not_found"
        assert "small" in (state.detail or "")
        assert (await probed(fake, model="big")).state.status == "ready"


async def test_the_key_goes_to_every_page() -> None:
    async with FakeVLLM(api_key="key-of-the-lane") as fake:
        lane = await probed(fake, api_key="key-of-the-lane")
        assert lane.state.status == "ready"
        assert {seen.header("authorization") for seen in fake.requests} == {"Bearer key-of-the-lane"}


async def test_the_model_is_asked_for_only_when_nobody_named_it() -> None:
    async with FakeVLLM(model="big") as fake:
        lane = lane_of(fake.url, model="named")
        assert await lane.model() == "named"
        assert fake.requests == []
        await lane.upstream.close()
        lane = lane_of(fake.url)
        assert await lane.model() == "big"
        await lane.upstream.close()


async def test_a_server_that_comes_back_speculating_is_asked_anew() -> None:
    async with FakeVLLM() as plain:
        port = plain.port
        lane = lane_of(plain.url)
        await lane.probe()
        assert lane.speculating is False
    await lane.probe()
    assert lane.state.status == "down"
    async with FakeVLLM(speculative=3, port=port):
        await lane.probe()
        assert lane.speculating is True
        assert lane.identity.num_speculative_tokens == 3
    await lane.upstream.close()


async def test_a_record_in_an_answer_is_remembered() -> None:
    record = {"num_spec_steps": 1, "num_draft_tokens": 4, "num_accepted_draft_tokens": 2}
    async with FakeVLLM((ROLE, TOK("a"), FIN("stop"), USE(1, spec=record), DONE), speculative=4) as fake:
        lane = lane_of(fake.url)
        assert (lane.reports_per_request, lane.warm) == (False, None)
        await lane.run(spec(), "m", lambda _, __: None, lambda _: None)
        assert (lane.reports_per_request, lane.warm) == (True, True)
        await lane.upstream.close()


async def test_counters_that_hang_are_given_up_in_time() -> None:
    import anyio

    async with FakeVLLM(speculative=4) as fake:
        fake.metrics.mode = "hang"
        lane = lane_of(fake.url)
        with anyio.fail_after(1):
            assert await lane.counters(0.1) is None
        await lane.upstream.close()


async def test_a_server_that_vanishes_has_no_model_to_ask_for() -> None:
    with refused_port() as port:
        lane = lane_of(f"http://127.0.0.1:{port}")
        with pytest.raises(UpstreamError):
            await lane.model()
        await lane.upstream.close()


# ------------------------------------------------------------------------------------------------ warm or cold
@pytest.mark.parametrize(("generated", "warm"), [(0, False), (17, True)])
async def test_p22_a_server_tells_whether_it_has_generated_since_its_start(generated: int, warm: bool) -> None:
    text = f'# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{{engine="0"}} {generated}\n'
    async with FakeVLLM(metrics=Metrics(text=text)) as fake:
        lane = await probed(fake)
        assert (lane.warm, lane.state.warm) == (warm, warm)


async def test_p22_a_server_that_does_not_tell_is_neither_warm_nor_cold_until_it_has_answered() -> None:
    async with FakeVLLM(metrics=Metrics(mode="404")) as fake:
        lane = lane_of(fake.url)
        await lane.probe()
        assert (lane.warm, lane.state.warm) == (None, None)
        await lane.run(spec(), "m", lambda _at, _again: None, lambda _chunk: None)
        assert (lane.warm, lane.state.warm) == (True, True)
        await lane.upstream.close()


async def test_p22_a_server_that_was_gone_is_asked_again_whether_it_is_warm() -> None:
    metrics = Metrics(text='vllm:generation_tokens_total{engine="0"} 5\n')
    async with FakeVLLM(metrics=metrics) as fake:
        lane = lane_of(fake.url)
        assert (await lane.probe()).warm is True
        fake.everything = Reply.error(503, "loading", "ServiceUnavailable")
        await lane.probe()
        assert lane.warm is None
        metrics.text, fake.everything = 'vllm:generation_tokens_total{engine="0"} 0\n', None
        assert (await lane.probe()).warm is False
        await lane.upstream.close()


# ------------------------------------------------------------------------------------------------ what changes unseen
PLAIN = 'vllm:generation_tokens_total{engine="0"} 5\n'
DRAFTING = PLAIN + "".join(f"vllm:spec_decode_num_{n}_total 1\n" for n in ("drafts", "draft_tokens", "accepted_tokens"))
RECORD = {"num_spec_steps": 1, "num_draft_tokens": 4, "num_accepted_draft_tokens": 2, "num_spec_tokens": 4}
WITH_RECORD = (ROLE, TOK("a"), FIN("stop"), USE(1, spec=RECORD), DONE)
WITHOUT = (ROLE, TOK("a"), FIN("stop"), USE(1), DONE)


async def answer_of(lane: LaneServer) -> None:
    await lane.run(spec(), "m", lambda _, __: None, lambda _: None)


@pytest.mark.parametrize("page", ["sglang:num_running_reqs 0\n", "llamacpp:tokens_predicted_total 5\n", PLAIN])
async def test_a_record_outranks_a_page_without_speculation_counters(page: str) -> None:
    async with FakeVLLM(WITH_RECORD, metrics=Metrics(text=page)) as fake:
        lane = lane_of(fake.url)
        await lane.probe()
        assert lane.speculating is (False if page == PLAIN else None)
        await answer_of(lane)
        await lane.counters(1)
        await lane.probe()
        assert (lane.speculating, lane.identity.num_speculative_tokens) == (True, 4)
        await lane.upstream.close()


async def test_a_server_that_comes_back_with_other_flags_between_two_probes_is_seen_by_the_reading_before_a_race() -> (
    None
):
    metrics = Metrics(text=PLAIN)
    async with FakeVLLM(WITH_RECORD, metrics=metrics) as fake:
        lane = lane_of(fake.url, method="ngram")
        await lane.probe()
        metrics.text = DRAFTING
        await lane.counters(1)
        assert (lane.speculating, lane.identity.method) == (True, "ngram")
        await answer_of(lane)
        metrics.text = PLAIN  # counters that were there have gone: no record of before outranks that
        await lane.counters(1)
        assert (lane.speculating, lane.identity.method, lane.identity.num_speculative_tokens) == (False, None, None)
        assert lane.reports_per_request is False
        await lane.upstream.close()


async def test_an_answer_without_a_record_brings_the_counters_back() -> None:
    async with FakeVLLM(speculative=4) as fake:
        lane = lane_of(fake.url)
        for script, reports in ((WITH_RECORD, True), (WITHOUT, False)):
            fake.then(script)
            await answer_of(lane)
            assert lane.reports_per_request is reports
        await lane.upstream.close()
