"""The whole check against servers that behave in every way it looks for; a server that is down hides nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.errors import Busy
from app.ops import preflight as preflights
from app.ops import probes
from app.ops.findings import Finding, Report
from app.ops.preflight import AGAIN_AFTER_S, Preflight, check
from app.race.endpoint import parse_endpoint
from app.race.hub import Hub, Limits
from app.race.lane import LaneServer
from app.race.types import LANES, LaneName
from app.race.upstream import Timeouts, Upstream
from app.race.workloads import Tab, Workload, Workloads
from tests.fakes.script import DONE, FIN, HANG, ROLE, TOK, USE, Reply, Script
from tests.fakes.vllm import FakeVLLM, Seen, refused_port
from tests.race.helpers import Clock, Memory, spec, until

pytestmark = pytest.mark.anyio

PROMPTS = Workloads(
    tab=[Tab(name="t", title="T", note="N")],
    workload=[Workload(name="json", tab="t", title="J", prompt="Five short words of prompt.", max_tokens=200)],
)


def answer(words: str = "one two three four", *, cached: int | None = 0, speculative: bool = False) -> Script:
    """A greedy answer in steps of two tokens."""
    parts = words.split()
    steps = [TOK(" ".join(parts[i : i + 2]) + " ", 2) for i in range(0, len(parts), 2)]
    return [ROLE, *steps, FIN("length"), USE(cached=cached, spec="auto" if speculative else None), DONE]


def pair(**of_both: Any) -> tuple[FakeVLLM, FakeVLLM]:
    """A baseline and a speculative server with nothing to mend."""
    fakes = FakeVLLM(**of_both), FakeVLLM(**({"speculative": 4} | of_both))
    for fake, speculative in zip(fakes, (False, True), strict=True):
        fake.metrics.prefix_caching = False
        fake.script = answer(speculative=speculative)
    return fakes


def lanes_at(*urls: str, **endpoint: Any) -> dict[LaneName, LaneServer]:
    return {
        lane: LaneServer(lane, Upstream(parse_endpoint(lane, url, **endpoint), Timeouts(connect_s=0.5)))
        for lane, url in zip(LANES, urls, strict=True)
    }


async def checked(*fakes: FakeVLLM, workloads: Workloads = PROMPTS, **endpoint: Any) -> Report:
    async with fakes[0], fakes[1]:
        return await checked_at(*(fake.url for fake in fakes), workloads=workloads, **endpoint)


async def checked_at(*urls: str, workloads: Workloads = PROMPTS, **endpoint: Any) -> Report:
    lanes = lanes_at(*urls, **endpoint)
    try:
        return await check(lanes, workloads)
    finally:
        for lane in lanes.values():
            await lane.upstream.close()


def found(report: Report, key: str, lane: LaneName | None = None) -> Finding:
    return next(finding for finding in report.findings if (finding.key, finding.lane) == (key, lane))


async def test_a_good_pair_is_ready() -> None:
    report = await checked(*pair())
    assert (report.ready, report.why) == (True, "no problem and no warning")
    notes = {finding.key for finding in report.findings if finding.level != "ok"}
    assert notes == {"speculation", "scheduling"}  # a server does not tell its method
    assert found(report, "context", "baseline").detail.startswith("2,048 tokens; the longest ready prompt")
    assert (
        found(report, "acceptance", "speculative").detail
        == "25.0% of 4 draft tokens, from the server's record of this answer"
    )


async def test_one_server_that_is_down_leaves_the_findings_of_the_other() -> None:
    _, speculative = pair()
    with refused_port() as port:
        async with speculative:
            report = await checked_at(f"http://127.0.0.1:{port}", speculative.url)
    assert report.ready is False
    assert found(report, "connection_refused", "baseline").level == "problem"
    assert found(report, "spec_record", "speculative").level == "ok"
    assert {"tokenizer", "race"}.isdisjoint(finding.key for finding in report.findings)
    assert str(port) not in str(report)


@pytest.mark.parametrize(
    ("reply", "key"),
    [
        (Reply.json(401, {"error": "Unauthorized"}), "unauthorized"),
        (Reply.json(404, {"detail": "Not Found"}), "not_a_model_server"),
        (Reply(body=b"<html>login</html>", content_type="text/html"), "not_a_model_server"),
        (Reply.json(503, {"error": {"message": "loading"}}), "unavailable"),
        (Reply.json(500, {}), "server_error"),
    ],
)
async def test_p23_p41_a_server_that_is_none_is_a_problem_of_its_lane(reply: Reply, key: str) -> None:
    baseline, speculative = pair()
    speculative.everything = reply
    report = await checked(baseline, speculative)
    one = found(report, key, "speculative")
    assert (report.ready, one.level, one.remedy is not None) == (False, "problem", True)
    assert speculative.posts == []


async def test_a_key_is_sent_and_its_acceptance_said() -> None:
    report = await checked(*pair(api_key="k"), api_key="k")
    assert found(report, "reachable", "baseline").detail.endswith("; key accepted")
    assert " k" not in found(report, "reachable", "baseline").detail.replace("key accepted", "")


async def test_an_answer_that_never_comes_does_not_hold_the_check_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "ANSWER_S", 0.2)
    baseline, speculative = pair()
    speculative.script = [ROLE, HANG]
    report = await checked(baseline, speculative)
    assert found(report, "first_token_timeout", "speculative").level == "problem"
    assert len(speculative.posts_with("Entry")) == 1
    assert found(report, "answers", "baseline").level == "ok"


async def test_different_tokenizers_are_seen() -> None:
    baseline, speculative = pair()
    speculative.tokenizer = lambda text: [len(text)]
    assert found(await checked(baseline, speculative), "tokenizer").level == "problem"


async def test_without_tokenize_the_ids_of_a_prompt_are_compared() -> None:
    baseline, speculative = pair()
    for fake in (baseline, speculative):
        fake.routes["/tokenize"] = Reply.json(404, {"detail": "Not Found"})
    report = await checked(baseline, speculative)
    assert found(report, "tokenizer").detail == "the same: 20 equal ids for a probe text (prompt_token_ids)"
    assert found(report, "context", "baseline").detail.endswith("could not be measured (no /tokenize here)")


async def test_a_server_with_nothing_of_vllm_gets_notes_and_no_flags() -> None:
    baseline, speculative = pair(honour={"usage"}, extras=False, owned_by="llamacpp")
    for fake in (baseline, speculative):
        fake.script = answer(cached=None)
        fake.metrics.mode = "404"
        fake.routes |= {path: Reply.json(404, {"detail": "Not Found"}) for path in ("/tokenize", "/version")}
        fake.routes["/v1/completions"] = Reply.json(400, {"error": {"message": "unknown field top_k"}})
    report = await checked(baseline, speculative)
    assert report.ready is True
    assert {finding.level for finding in report.findings} == {"ok", "note"}
    assert [finding.code for finding in report.findings if finding.code] == []


async def test_a_prompt_too_long_for_the_context_is_named() -> None:
    report = await checked(*pair(max_model_len=205))
    one = found(report, "context", "speculative")
    assert (one.level, one.code) == ("warning", "--max-model-len 207")
    assert one.detail == "205 tokens; answers cut short without a word: json (7 + 200)"


async def test_a_prefix_cache_on_one_side_is_seen_on_the_metrics_page() -> None:
    baseline, speculative = pair()
    baseline.metrics.prefix_caching = True
    assert found(await checked(baseline, speculative), "prefix_cache").detail.startswith(
        "on at the baseline server only"
    )


async def test_a_prefix_cache_on_one_side_is_seen_in_the_second_answer() -> None:
    baseline, speculative = pair()
    for fake in (baseline, speculative):
        fake.metrics.mode = "404"
    baseline.then(answer(), answer(cached=256))
    one = found(await checked(baseline, speculative), "prefix_cache")
    assert (one.level, one.detail.split(":")[0]) == ("warning", "on at the baseline server only")
    first, second = baseline.posts_with("Entry")
    assert first.body == second.body
    assert len(first.prompt.split()) > 128  # longer than a block of the CPU backend


def with_default(name: str, *, repeats: bool = True) -> Callable[[Seen], Script]:
    """Answers that change when the request names ``name`` itself: the server has a default of its own for it."""
    count = iter(range(1000))

    def chosen(seen: Seen) -> Script:
        body = seen.json
        if body.get("stream"):
            return answer(speculative=True)
        noise = "" if repeats else str(next(count))
        return answer(("neutral words here" if name in body else "filtered words here") + noise)

    return chosen


async def test_a_sampling_default_of_one_server_is_seen_and_named() -> None:
    baseline, speculative = pair()
    speculative.script = with_default("top_k")
    one = found(await checked(baseline, speculative), "sampling")
    assert (one.level, one.code) == ("warning", "--generation-config vllm")
    assert one.detail == "baseline adds none, speculative adds at least top_k to what a race sends"


async def test_a_server_that_does_not_repeat_itself_shows_nothing() -> None:
    baseline, speculative = pair()
    speculative.script = with_default("min_p", repeats=False)
    one = found(await checked(baseline, speculative), "sampling")
    assert (one.level, one.detail) == ("note", "cannot be seen at speculative (equal seeds gave different text)")


async def test_texts_that_differ_three_times_are_a_problem() -> None:
    baseline, speculative = pair()
    speculative.script = answer("one two four three", speculative=True)
    one = found(await checked(baseline, speculative), "race")
    assert (one.level, one.detail) == ("problem", "3 of 3 texts differ at temperature 0 (from token 2, 2, 2 on)")


async def test_one_near_tie_is_forgiven() -> None:
    baseline, speculative = pair()
    speculative.on("Shopping", answer("one two four three", speculative=True))
    one = found(await checked(baseline, speculative), "race")
    assert (one.level, "before it 1 of 2 differed" in one.detail) == ("note", True)


async def test_a_race_that_fails_is_a_problem_of_its_lane() -> None:
    baseline, speculative = pair()
    speculative.on("Shopping", [ROLE, TOK("a"), *answer()[-1:]])
    speculative.on("Shopping", Reply.error(500, "engine died", "InternalServerError"))
    one = found(await checked(baseline, speculative), "race", "speculative")
    assert (one.level, "engine died" in one.detail) == ("problem", True)


async def test_a_server_without_drafts_is_a_warning() -> None:
    baseline, speculative = pair()
    speculative.script = [ROLE, TOK("one"), FIN("length"), USE(cached=0, spec="auto"), DONE]
    baseline.script = [ROLE, TOK("one"), FIN("length"), USE(cached=0), DONE]
    assert found(await checked(baseline, speculative), "acceptance", "speculative").level == "warning"


async def test_other_requests_are_seen_before_our_own() -> None:
    baseline, speculative = pair()
    text = baseline.metrics.render()
    running = 'vllm:num_requests_running{engine="0",model_name="m"}'
    assert f"{running} 0.0" in text
    baseline.metrics.text = text.replace(f"{running} 0.0", f"{running} 2.0")
    one = found(await checked(baseline, speculative), "other_traffic", "baseline")
    assert one.detail == "2 running, 0 waiting, and none of them is ours"


async def test_one_server_for_both_lanes_is_a_problem() -> None:
    _, speculative = pair()
    async with speculative:
        report = await checked_at(speculative.url, speculative.url)
    assert found(report, "same_server").level == "problem"
    assert found(report, "speculation", "baseline").level == "problem"


# ------------------------------------------------------------------------------------------ one for the whole app
@asynccontextmanager
async def app_of(*fakes: FakeVLLM) -> AsyncGenerator[tuple[Preflight, Hub, Clock]]:
    """The app's check in front of two servers."""
    clock = Clock()
    async with fakes[0], fakes[1]:
        lanes = lanes_at(*(fake.url for fake in fakes))
        hub = Hub(lanes, Memory(), Limits())
        preflight = Preflight(lanes, PROMPTS, hub, clock=clock)
        yield preflight, hub, clock
        await preflight.close()
        await hub.close()
        for lane in lanes.values():
            await lane.upstream.close()


async def ended(preflight: Preflight) -> None:
    await until(lambda: preflight.doing is None, within_s=10)


async def test_a_check_runs_alone_is_kept_and_is_not_repeated_at_once() -> None:
    async with app_of(*pair()) as (preflight, _, clock):
        assert (preflight.last, preflight.doing, preflight.refusal()) == (None, None, None)
        preflight.start()
        with pytest.raises(Busy, match="a check is running already"):
            preflight.start()
        await ended(preflight)
        kept = preflight.last
        assert kept is not None
        assert kept.ready
        with pytest.raises(Busy) as refused:
            preflight.start()
        assert refused.value.retry_after_s == AGAIN_AFTER_S
        clock.move_ms(1000 * AGAIN_AFTER_S)
        assert preflight.refusal() is None
        assert await preflight.run() is preflight.last
        assert preflight.last is not kept


async def test_a_check_waits_for_no_race_and_a_race_waits_for_the_check() -> None:
    async with app_of(*pair()) as (preflight, hub, clock):
        preflight.start()
        run = hub.start(spec("Raced meanwhile."))
        assert (hub.waiting, hub.racing, run.board.position) == (1, False, 1)
        await ended(preflight)
        assert (hub.waiting, hub.racing) == (0, True)
        clock.move_ms(1000 * AGAIN_AFTER_S)
        with pytest.raises(Busy, match="a race is on the servers"):
            preflight.start()
        assert run.task is not None
        await run.task
        assert run.board.status == "finished"
        assert preflight.refusal() is None


async def test_a_fault_of_the_check_itself_is_said_and_gives_the_pair_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(preflights, "look", broken)
    async with app_of(*pair()) as (preflight, hub, _):
        report = await preflight.run()
        assert (report.ready, report.why) == (
            False,
            "1 problem: the check itself: Specrace could not go on (KeyError); its log says more",
        )
        assert hub.hold()


async def test_a_check_that_runs_ends_with_the_app() -> None:
    baseline, speculative = pair()
    baseline.script = [ROLE, HANG]
    async with app_of(baseline, speculative) as (preflight, hub, _):
        waiting = asyncio.create_task(preflight.run())
        await until(lambda: baseline.posts_with("Entry"))
        await preflight.close()
        with pytest.raises(Busy, match="restarting"):
            await waiting
        assert (preflight.doing, preflight.last) == (None, None)
        assert hub.hold()
