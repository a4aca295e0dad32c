"""One race with servers that do what a test says: order, independence, stop, readings, counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
import structlog
from msgspec import structs

from app.race import race as reading_room
from app.race import racer as race_room
from app.race.events import ComparisonRead, Event, LaneDrafts, LaneFigures, LaneStarted, RaceFinished, RaceStarted
from app.race.failures import UpstreamError
from app.race.race import Race
from app.race.scoreboard import Scoreboard
from app.race.types import (
    Chunk,
    Comparison,
    LaneName,
    LaneNumbers,
    LaneStatus,
    RaceStatus,
    Schedule,
    SpecRecord,
    Usage,
)
from app.race.wire import ChunkDecoder
from tests.race.helpers import FIN, Clock, FakeRunner, exactly, spec, tok, total, until
from tests.race.test_counters import page

pytestmark = pytest.mark.anyio
BREAK = UpstreamError("cut_off", "The stream ended in the middle of the answer")


class Sink:
    """Fold and log, as app.race.hub.Run does it."""

    def __init__(self) -> None:
        self.board = Scoreboard()
        self.events: list[Event] = []

    def append(self, event: Event) -> None:
        assert not any(isinstance(e, RaceFinished) for e in self.events), "an event after the end"
        self.board.apply(event)
        self.events.append(event)

    def numbers(self, lane: LaneName, now_ms: float, *, ending: LaneStatus | None = None) -> LaneNumbers:
        return self.board.numbers(lane, now_ms, ending=ending)

    def comparison(self, now_ms: float) -> Comparison:
        return self.board.comparison(now_ms, greedy=True)

    def of(self, kind: type, lane: str | None = None) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind) and (lane is None or e.lane == lane)]  # type: ignore[attr-defined]

    def kinds(self, lane: str) -> list[str]:
        tags = [e.__struct_config__.tag for e in self.events if getattr(e, "lane", None) == lane]
        return [str(tag) for tag in tags if tag != "lane.figures"]


def race_of(
    baseline: FakeRunner, speculative: FakeRunner, sink: Sink, *, schedule: Schedule = "together", **rest: Any
) -> Race:
    runners: dict[LaneName, FakeRunner] = {"baseline": baseline, "speculative": speculative}
    from app.race.clock import monotonic_ns

    clock = rest.pop("clock", monotonic_ns)
    asked = structs.replace(spec(schedule=schedule), first=rest.pop("first", "baseline"))
    return Race(asked, runners, sink, epoch_ns=clock(), clock=clock, **rest)


async def run(race: Race, within_s: float = 5.0) -> RaceStatus:
    with anyio.fail_after(within_s):
        return await race.run(queue_ms=1.5, in_flight=2, conditions=("cold_start",))


ANSWER = (tok("Hel"), tok("lo", 2), FIN, total(3, prompt_tokens=7))


async def test_a_whole_race_is_told_in_order() -> None:
    sink = Sink()
    assert await run(race_of(FakeRunner(*ANSWER), FakeRunner(*ANSWER), sink)) == "finished"
    for lane in ("baseline", "speculative"):
        assert sink.kinds(lane) == ["lane.started", "lane.chunk", "lane.chunk", "lane.usage", "lane.finished"]
        assert sink.board.lanes[lane].text == "Hello"  # type: ignore[index]
    first, *_, compared, last = sink.events
    assert first == RaceStarted(t_ms=first.t_ms, queue_ms=1.5, in_flight=2, conditions=("cold_start",))
    assert isinstance(compared, ComparisonRead)
    assert last == RaceFinished(t_ms=last.t_ms, status="finished")
    times = [event.t_ms for event in sink.events]
    assert times == sorted(times)
    assert times[0] >= 0


async def test_the_event_of_the_end_has_the_figures_of_the_end() -> None:
    clock, sink = Clock(), Sink()
    step = lambda ms: lambda: clock.move_ms(ms)  # noqa: E731
    steps = (step(100), tok("a"), step(40), tok("b", 4), step(3), FIN, total(5))
    race = race_of(FakeRunner(*steps, clock=clock), FakeRunner(clock=clock), sink, schedule="in_turn", clock=clock)
    await run(race)
    end = sink.of(race_room.LaneFinished, "baseline")[0]
    assert (end.ttft_ms, end.e2e_ms, end.tpot_ms, end.completion_tokens) == (100, 140, 10, 5)
    assert end.tokens_per_second == exactly(5 / 0.140)
    assert (end.status, end.finish_reason) == ("finished", "stop")


@pytest.mark.parametrize(
    ("baseline", "speculative", "status"),
    [
        (ANSWER, ANSWER, "finished"),
        (ANSWER, (tok("a"), BREAK), "partial"),
        ((UpstreamError("connection_refused", "No"),), ANSWER, "partial"),
        ((BREAK,), (BREAK,), "failed"),
    ],
)
async def test_the_status_of_the_race_follows_from_its_lanes(
    baseline: Sequence[Any], speculative: Sequence[Any], status: str
) -> None:
    assert await run(race_of(FakeRunner(*baseline), FakeRunner(*speculative), Sink())) == status


async def test_p08_a_lane_that_breaks_keeps_its_tokens_and_leaves_the_other_alone() -> None:
    sink = Sink()
    slow = FakeRunner(tok("a"), 0.15, tok("b"), FIN, total(2))
    assert await run(race_of(FakeRunner(tok("x", 3), BREAK), slow, sink)) == "partial"
    failed = sink.of(race_room.LaneFailed, "baseline")[0]
    assert (failed.status, failed.error.kind, failed.completion_tokens) == ("cut_off", "cut_off", 3)
    assert sink.board.lanes["baseline"].text == "x"
    assert sink.board.lanes["speculative"].text == "ab"
    assert sink.board.lanes["speculative"].status == "finished"
    assert slow.left == 1


async def test_a_fault_of_our_own_in_one_lane_does_not_take_the_other() -> None:
    sink = Sink()
    with structlog.testing.capture_logs() as logged:
        other = FakeRunner(0.05, *ANSWER)
        assert await run(race_of(FakeRunner(tok("a"), RuntimeError("secret detail")), other, sink)) == "partial"
    failed = sink.of(race_room.LaneFailed, "baseline")[0]
    assert failed.error.kind == "stream_error"
    assert "secret" not in failed.error.message
    assert sink.board.lanes["speculative"].status == "finished"
    assert [entry["log_level"] for entry in logged] == ["error"]


async def test_a_server_that_names_no_model_is_a_failure_of_its_lane() -> None:
    sink = Sink()
    runner = FakeRunner(*ANSWER, model=UpstreamError("model_not_found", "The server serves no model"))
    assert await run(race_of(runner, FakeRunner(*ANSWER), sink)) == "partial"
    assert sink.kinds("baseline") == ["lane.failed"]
    assert runner.runs == 0


@pytest.mark.parametrize(
    ("reason", "status", "kind"), [("abort", "aborted", "aborted"), ("error", "failed", "stream_error")]
)
async def test_a_finish_reason_that_is_no_finish(reason: str, status: str, kind: str) -> None:
    sink = Sink()
    steps = (tok("a"), Chunk(at_ns=0, tokens=0, token_ids=(), finish_reason=reason), total(1))
    assert await run(race_of(FakeRunner(*steps), FakeRunner(*ANSWER), sink)) == "partial"
    failed = sink.of(race_room.LaneFailed, "baseline")[0]
    assert (failed.status, failed.error.kind) == (status, kind)


async def test_together_the_lanes_overlap() -> None:
    met = anyio.Event()
    waits = FakeRunner(met, *ANSWER)
    frees = FakeRunner(met.set, *ANSWER)
    assert await run(race_of(waits, frees, Sink())) == "finished"


@pytest.mark.parametrize("order", [("baseline", "speculative"), ("speculative", "baseline")])
async def test_in_turn_the_second_lane_waits_for_the_end_of_the_first(order: tuple[LaneName, LaneName]) -> None:
    sink = Sink()
    race = race_of(FakeRunner(0.02, *ANSWER), FakeRunner(0.02, *ANSWER), sink, schedule="in_turn", first=order[0])
    assert await run(race) == "finished"
    told = [e for e in sink.events if isinstance(e, (LaneStarted, race_room.LaneFinished))]
    assert [(e.lane, type(e).__name__) for e in told] == [
        (order[0], "LaneStarted"),
        (order[0], "LaneFinished"),
        (order[1], "LaneStarted"),
        (order[1], "LaneFinished"),
    ]


@pytest.mark.parametrize("first", ["baseline", "speculative"])
async def test_together_the_first_lane_starts_first(first: LaneName) -> None:
    sink = Sink()
    assert await run(race_of(FakeRunner(*ANSWER), FakeRunner(*ANSWER), sink, first=first)) == "finished"
    assert next(e.lane for e in sink.events if isinstance(e, LaneStarted)) == first


async def test_in_turn_the_second_lane_runs_although_the_first_failed() -> None:
    sink = Sink()
    assert await run(race_of(FakeRunner(BREAK), FakeRunner(*ANSWER), sink, schedule="in_turn")) == "partial"
    assert sink.board.lanes["speculative"].text == "Hello"


# ------------------------------------------------------------------------------------------------ stop
async def test_stop_ends_both_lanes_and_keeps_what_they_said() -> None:
    sink = Sink()
    runners = [FakeRunner(tok("a"), 60.0), FakeRunner(tok("b", 2), 60.0)]
    race = race_of(*runners, sink)
    async with anyio.create_task_group() as group:
        found: list[RaceStatus] = []

        async def go() -> None:
            found.append(await run(race))

        group.start_soon(go)
        await until(lambda: len(sink.of(race_room.LaneChunk)) == 2)
        race.stop()
    assert found == ["stopped"]
    for lane, text in (("baseline", "a"), ("speculative", "b")):
        assert sink.kinds(lane)[-1] == "lane.finished"
        assert sink.board.lanes[lane].status == "stopped"  # type: ignore[index]
        assert sink.board.lanes[lane].text == text  # type: ignore[index]
    assert [runner.left for runner in runners] == [1, 1]


async def test_stop_after_one_lane_has_finished_is_a_partial_race() -> None:
    sink = Sink()
    race = race_of(FakeRunner(*ANSWER), FakeRunner(tok("b"), 60.0), sink)
    async with anyio.create_task_group() as group:
        group.start_soon(run, race)
        await until(lambda: sink.board.lanes["baseline"].ended)
        race.stop()
    assert sink.board.status == "partial"
    assert sink.board.lanes["baseline"].status == "finished"
    assert sink.board.lanes["speculative"].status == "stopped"


async def test_stop_in_turn_never_asks_the_second_server() -> None:
    sink, second = Sink(), FakeRunner(*ANSWER)
    race = race_of(FakeRunner(tok("a"), 60.0), second, sink, schedule="in_turn")
    async with anyio.create_task_group() as group:
        group.start_soon(run, race)
        await until(lambda: sink.board.lanes["baseline"].chunks == 1)
        race.stop()
    assert sink.board.status == "stopped"
    assert sink.board.lanes["speculative"].status == "stopped"
    assert second.runs == 0


async def test_stop_while_the_counters_are_read_asks_no_server() -> None:
    sink = Sink()
    runners = [FakeRunner(*ANSWER, readings=[60.0]), FakeRunner(*ANSWER, readings=[60.0])]
    race = race_of(*runners, sink)
    async with anyio.create_task_group() as group:
        group.start_soon(run, race)
        await anyio.sleep(0.05)
        race.stop()
    assert sink.board.status == "stopped"
    assert [runner.runs for runner in runners] == [0, 0]


async def test_stop_after_the_end_changes_nothing() -> None:
    sink = Sink()
    race = race_of(FakeRunner(*ANSWER), FakeRunner(*ANSWER), sink)
    await run(race)
    count = len(sink.events)
    race.stop()
    assert (sink.board.status, len(sink.events)) == ("finished", count)


async def test_cancelling_the_race_cancels_both_requests() -> None:
    runners = [FakeRunner(tok("a"), 60.0), FakeRunner(60.0)]
    with anyio.move_on_after(0.05):
        await run(race_of(*runners, Sink()))
    assert [runner.left for runner in runners] == [1, 1]


# ------------------------------------------------------------------------------------------------ chunks
async def test_a_delta_with_reasoning_and_text_counts_its_tokens_once() -> None:
    sink = Sink()
    await run(race_of(FakeRunner(tok("Yes", 5, reasoning="hm"), FIN), FakeRunner(), sink))
    lane = sink.board.lanes["baseline"]
    assert (lane.reasoning, lane.text, lane.tokens, lane.token_ids) == ("hm", "Yes", 5, [0, 1, 2, 3, 4])
    told = [(e.reasoning, e.text, e.tokens) for e in sink.of(race_room.LaneChunk, "baseline")]
    assert told == [(True, "hm", 5), (False, "Yes", 0)]


async def test_p18_a_chunk_with_ids_and_no_text_is_a_token_and_adds_no_text() -> None:
    sink = Sink()
    await run(race_of(FakeRunner(tok(""), tok(""), tok("🫠"), FIN), FakeRunner(), sink))
    lane = sink.board.lanes["baseline"]
    assert (lane.text, lane.tokens, lane.chunks) == ("🫠", 3, 3)


async def test_what_brings_nothing_is_no_event() -> None:
    sink = Sink()
    empty = Chunk(at_ns=0, tokens=0, token_ids=())
    await run(race_of(FakeRunner(empty, tok("a"), empty, FIN), FakeRunner(), sink))
    assert sink.kinds("baseline") == ["lane.started", "lane.chunk", "lane.finished"]
    assert sink.board.lanes["baseline"].finish_reason == "stop"


async def test_a_tool_call_is_noted() -> None:
    sink = Sink()
    await run(race_of(FakeRunner(tok("", 1, tool_call=True), FIN), FakeRunner(), sink))
    assert sink.board.lanes["baseline"].called_tool


class Wire(FakeRunner):
    """Sends these messages through the real decoder."""

    def __init__(self, *messages: Any) -> None:
        super().__init__()
        self._messages = messages

    async def run(self, spec: Any, _: str, sent: Any, receive: Any) -> None:
        sent(self.clock(), False)
        decoder = ChunkDecoder()
        for message in self._messages:
            await anyio.lowlevel.checkpoint()
            body = message if isinstance(message, bytes) else msgspec.json.encode(message)
            found = decoder.decode(body, self.clock())
            if found is not None:
                receive(found)


def delta(text: str, **more: Any) -> dict[str, Any]:
    finish = more.pop("finish", None)
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]} | more


@pytest.mark.parametrize("last", ["", "."])
async def test_a_total_that_comes_with_the_finish_reason_is_a_total(last: str) -> None:
    # servers other than vLLM send no chunk without choices at the end
    sink = Sink()
    counts = {"prompt_tokens": 20, "completion_tokens": 80, "prompt_tokens_details": {"cached_tokens": 16}}
    wire = Wire(*(delta("a b c ") for _ in range(9)), delta(last, finish="stop", usage=counts))
    await run(race_of(wire, FakeRunner(), sink))
    numbers = sink.board.numbers("baseline")
    assert (numbers.completion_tokens, numbers.tokens_estimated) == (80, False)
    assert (numbers.prompt_tokens, numbers.cached_tokens) == (20, 16)


async def test_p05_the_last_running_count_is_the_total_where_nothing_else_comes() -> None:
    sink = Sink()
    counts = [{"usage": {"completion_tokens": 1}} for _ in range(79)]
    await run(
        race_of(
            Wire(*(delta("x", **c) for c in counts), delta("x", usage={"completion_tokens": 80})), FakeRunner(), sink
        )
    )
    assert sink.board.numbers("baseline").completion_tokens == 80


@pytest.mark.parametrize("n", [-5, 10**400])
async def test_a_count_that_cannot_be_does_not_end_the_race(n: int) -> None:
    sink = Sink()
    body = b'{"choices":[],"usage":{"completion_tokens":%d}}' % n
    status = await run(race_of(Wire(delta("x", usage={"completion_tokens": 1}), body), FakeRunner(*ANSWER), sink))
    assert status in ("finished", "partial")
    assert sink.board.lanes["speculative"].status == "finished"
    tps = sink.board.numbers("baseline").tokens_per_second
    assert tps is None or 0 < tps < 1e12


async def test_usage_before_the_last_token_is_not_the_total() -> None:
    sink = Sink()
    early = Chunk(at_ns=0, usage=Usage(prompt_tokens=9, completion_tokens=1))
    await run(race_of(FakeRunner(tok("a"), early, tok("b"), tok("c"), FIN), FakeRunner(), sink))
    numbers = sink.board.numbers("baseline")
    assert (numbers.completion_tokens, numbers.prompt_tokens) == (3, 9)


# ------------------------------------------------------------------------------------------------ readings
async def test_readings_come_a_few_times_a_second_and_only_when_something_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading_room, "READINGS_EVERY_S", 0.03)
    sink = Sink()
    talks = FakeRunner(tok("a"), 0.08, tok("b", 4), 0.2, tok("c"), 0.05, FIN, total(6))
    await run(race_of(talks, FakeRunner(0.3), sink))
    read = sink.of(LaneFigures, "baseline")
    assert [figures.completion_tokens for figures in read] == [1, 5, 6]
    assert all(figures.status == "streaming" and figures.e2e_ms is None for figures in read)
    assert sink.of(LaneFigures, "speculative") == []
    assert len(sink.of(ComparisonRead)) == 4  # beside each, and at the end


# ------------------------------------------------------------------------------------------------ counters
SPECULATIVE = {"speculating": True, "method": "ngram", "k": 4}


def drafts_of(sink: Sink) -> SpecRecord | None:
    found = sink.of(LaneDrafts, "speculative")
    assert len(found) <= 1
    return found[0].record if found else None


@pytest.fixture
def _settle_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race_room, "COUNTERS_SETTLE_S", 0.6)


BEFORE, AFTER = page(10, 40, 20, (8, 6, 4, 2), generated=100), page(12, 48, 25, (10, 7, 5, 3), generated=108)
ANSWER8 = (tok("a"), tok("b", 4), tok("c", 3), FIN, total(8))


async def test_the_growth_of_the_counters_is_the_lanes_record() -> None:
    sink = Sink()
    runner = FakeRunner(*ANSWER8, readings=[BEFORE, AFTER], **SPECULATIVE)  # type: ignore[arg-type]
    await run(race_of(FakeRunner(*ANSWER8, speculating=False), runner, sink))
    record = drafts_of(sink)
    assert record is not None
    assert (record.source, record.drafts, record.drafted, record.accepted) == ("server", 2, 8, 5)
    assert record.accepted_at_least == (2, 1, 1, 1)
    assert (record.exclusive, record.certain) == (True, True)
    numbers = sink.board.numbers("speculative").acceptance
    assert numbers is not None
    assert (numbers.source, numbers.rate) == ("server", 0.625)


async def test_a_server_without_speculation_is_not_asked_for_counters() -> None:
    plain = FakeRunner(*ANSWER8, speculating=False, readings=[BEFORE])
    await run(race_of(plain, FakeRunner(*ANSWER8), Sink()))
    assert plain.scrapes == 0


async def test_a_server_that_reports_per_request_is_not_asked_for_counters() -> None:
    runner = FakeRunner(*ANSWER8, readings=[BEFORE, AFTER], **SPECULATIVE)  # type: ignore[arg-type]
    runner.reports_per_request = True
    await run(race_of(FakeRunner(), runner, Sink()))
    assert runner.scrapes == 0


async def test_the_record_of_the_request_wins_over_the_counters() -> None:
    sink = Sink()
    own = SpecRecord(source="request", drafts=2, drafted=8, accepted=5)
    runner = FakeRunner(tok("a"), tok("b", 7), FIN, total(8, own), readings=[BEFORE, AFTER], **SPECULATIVE)  # type: ignore[arg-type]
    await run(race_of(FakeRunner(), runner, sink))
    assert drafts_of(sink) == own
    assert runner.scrapes == 1  # before: that it reports was not known yet


async def test_p17_counters_that_lag_are_waited_for() -> None:
    sink = Sink()
    part = page(11, 44, 22, (9, 7, 4, 2), generated=104)
    runner = FakeRunner(*ANSWER8, readings=[BEFORE, BEFORE, part, part, AFTER], **SPECULATIVE)  # type: ignore[arg-type]
    await run(race_of(FakeRunner(), runner, sink))
    record = drafts_of(sink)
    assert record is not None
    assert (record.drafts, record.accepted) == (2, 5)


@pytest.mark.usefixtures("_settle_fast")
@pytest.mark.parametrize("never", [BEFORE, page(11, 44, 22, (9, 7, 4, 2), generated=104)])
async def test_p17_counters_that_do_not_arrive_in_time_give_no_figure_and_no_claim(never: str) -> None:
    sink = Sink()
    runner = FakeRunner(*ANSWER8, readings=[BEFORE, never], **SPECULATIVE)  # type: ignore[arg-type]
    await run(race_of(FakeRunner(*ANSWER8, speculating=False), runner, sink))
    record = drafts_of(sink)
    assert record is None or not record.certain
    assert "no_drafts" not in sink.board.comparison(greedy=True).caveats
    acceptance = sink.board.numbers("speculative").acceptance
    assert acceptance is None or acceptance.source == "stream" or acceptance.rate is None


@pytest.mark.usefixtures("_settle_fast")
async def test_p17_a_page_that_hangs_after_the_race_costs_the_figure_and_little_time() -> None:
    sink = Sink()
    runner = FakeRunner(*ANSWER8, readings=[BEFORE, 60.0], **SPECULATIVE)  # type: ignore[arg-type]
    began = anyio.current_time()
    assert await run(race_of(FakeRunner(), runner, sink)) == "finished"
    assert anyio.current_time() - began < 1.5
    record = drafts_of(sink)
    assert record is not None
    assert (record.certain, record.doubt) == (False, "unreadable")  # not late: it never came


async def test_p17_a_busy_server_never_stands_still_and_is_told_as_such() -> None:
    sink = Sink()
    moving = [page(10 + n, 40 + 4 * n, 20 + 2 * n, generated=100 + 30 * n) for n in range(1, 60)]
    runner = FakeRunner(*ANSWER8, readings=[BEFORE, *moving], **SPECULATIVE)  # type: ignore[arg-type]
    await run(race_of(FakeRunner(*ANSWER8, speculating=False), runner, sink))
    record = drafts_of(sink)
    assert record is not None
    assert (record.exclusive, record.certain) == (False, True)
    assert runner.scrapes == 2  # nothing to wait for
    assert "other_traffic" in sink.board.comparison(greedy=True).caveats


@pytest.mark.usefixtures("_settle_fast")
async def test_p17_a_single_reading_that_fails_does_not_lose_the_others() -> None:
    sink = Sink()
    runner = FakeRunner(*ANSWER8, readings=[BEFORE, AFTER, None, AFTER], **SPECULATIVE)  # type: ignore[arg-type]
    await run(race_of(FakeRunner(), runner, sink))
    record = drafts_of(sink)
    assert record is not None
    assert record.accepted == 5


async def test_p17_a_page_that_hangs_before_the_race_delays_it_by_less_than_half_a_second() -> None:
    sink = Sink()
    runner = FakeRunner(*ANSWER8, readings=[60.0], **SPECULATIVE)  # type: ignore[arg-type]
    began = anyio.current_time()
    assert await run(race_of(FakeRunner(*ANSWER8, speculating=False), runner, sink)) == "finished"
    assert anyio.current_time() - began < 0.9
    ttft = sink.board.numbers("speculative").ttft_ms
    assert ttft is not None
    assert ttft < 100  # the wait is in no figure
    assert drafts_of(sink) is None


@pytest.mark.usefixtures("_settle_fast")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_fault_of_our_own_in_the_counters_does_not_end_the_race(when: str) -> None:
    sink = Sink()
    readings = [RuntimeError("ours")] if when == "before" else [BEFORE, RuntimeError("ours")]
    runner = FakeRunner(*ANSWER8, readings=readings, **SPECULATIVE)  # type: ignore[arg-type]
    assert await run(race_of(FakeRunner(*ANSWER8, speculating=False), runner, sink)) == "finished"
    assert sink.board.lanes["baseline"].status == "finished"


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
async def test_counters_that_are_no_numbers_never_end_a_race(value: str) -> None:
    sink = Sink()
    broken = AFTER.replace(" 48\n", f" {value}\n")
    runner = FakeRunner(*ANSWER8, readings=[BEFORE, broken], **SPECULATIVE)  # type: ignore[arg-type]
    assert await run(race_of(FakeRunner(*ANSWER8, speculating=False), runner, sink)) == "finished"


async def test_a_lane_without_a_token_waits_for_no_counters() -> None:
    runner = FakeRunner(UpstreamError("unavailable", "Asleep"), readings=[BEFORE, AFTER], **SPECULATIVE)  # type: ignore[arg-type]
    await run(race_of(FakeRunner(*ANSWER8, speculating=False), runner, Sink()))
    assert runner.scrapes == 1


async def test_p16_a_server_without_counters_shows_no_acceptance() -> None:
    sink = Sink()
    none = 'vllm:generation_tokens_total{engine="0"} 5\n'
    runner = FakeRunner(tok("a"), tok("b"), FIN, total(2), readings=[none])
    await run(race_of(FakeRunner(), runner, sink))
    assert drafts_of(sink) is None
    assert sink.board.numbers("speculative").acceptance is None


# ------------------------------------------------------------------------------------------------ in hand
IN_HAND = "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n"


@pytest.mark.parametrize(("in_flight", "scrapes", "seen"), [(1, 1, (2, 1)), (2, 0, (None, None))])
async def test_what_a_server_has_in_hand_is_read_before_the_race_unless_a_race_of_ours_is_on_it(
    in_flight: int, scrapes: int, seen: tuple[int | None, int | None]
) -> None:
    sink = Sink()
    plain = FakeRunner(*ANSWER, speculating=False, readings=[IN_HAND])
    with anyio.fail_after(5):
        await race_of(plain, FakeRunner(*ANSWER), sink).run(queue_ms=0, in_flight=in_flight)
    assert plain.scrapes == scrapes
    started = sink.of(LaneStarted, "baseline")[0]
    assert (started.requests_running, started.requests_waiting) == seen


async def test_a_server_that_does_not_tell_what_it_has_in_hand_costs_the_race_no_more_than_the_limit() -> None:
    sink = Sink()
    silent = FakeRunner(*ANSWER, speculating=False, readings=[60.0])
    with anyio.fail_after(3):
        assert await race_of(silent, FakeRunner(*ANSWER), sink).run(queue_ms=0, in_flight=1) == "finished"
    assert sink.of(LaneStarted, "baseline")[0].requests_running is None


@pytest.mark.usefixtures("_settle_fast")
@pytest.mark.parametrize("readings", [[None], ["<html>Sign in</html>"], [page(11, 44, 22), None]])
async def test_a_page_that_turns_to_garbage_after_the_race_is_not_called_late(readings: list[str | None]) -> None:
    sink = Sink()
    after = [ValueError(text) if text and "<" in text else text for text in readings]
    runner = FakeRunner(*ANSWER8, readings=[BEFORE, *after], **SPECULATIVE)  # type: ignore[arg-type]
    await run(race_of(FakeRunner(), runner, sink))
    record = drafts_of(sink)
    assert record is not None
    assert (record.certain, record.doubt) == (False, "unreadable")


async def test_a_server_that_stops_sending_records_is_read_by_its_counters_in_the_same_race() -> None:
    sink = Sink()
    runner = FakeRunner(*ANSWER8, readings=[BEFORE, AFTER], **SPECULATIVE)  # type: ignore[arg-type]
    runner.reports_per_request = True
    with anyio.fail_after(5):
        await race_of(FakeRunner(), runner, sink).run(queue_ms=0, in_flight=1)
    record = drafts_of(sink)
    assert record is not None
    assert (record.source, record.accepted) == ("server", 5)


@pytest.mark.usefixtures("_settle_fast")
async def test_the_late_half_of_counters_without_a_token_counter_is_waited_for() -> None:
    sink = Sink()
    # 13 tokens, k = 4: 1 + 1 + 4 are fewer than 13 - 4, so two equal pages are not enough
    half = page(11, 44, 24, (9, 7, 5, 3))
    whole = page(13, 52, 29, (11, 9, 6, 3))
    answer = (tok("a"), tok("b", 12), FIN, total(13))
    runner = FakeRunner(*answer, readings=[page(10, 40, 20, (8, 6, 4, 2)), half, half, half, whole], **SPECULATIVE)  # type: ignore[arg-type]
    await run(race_of(FakeRunner(), runner, sink))
    record = drafts_of(sink)
    assert record is not None
    assert (record.drafts, record.accepted, record.exclusive, record.certain) == (3, 9, True, True)


async def test_p15_one_token_with_counters_that_stood_still_is_no_drafts_and_not_too_late() -> None:
    sink = Sink()
    still = page(10, 40, 20, (8, 6, 4, 2))
    runner = FakeRunner(tok("a"), FIN, total(1), readings=[still, still], **SPECULATIVE)  # type: ignore[arg-type]
    await run(race_of(FakeRunner(*ANSWER8, speculating=False), runner, sink))
    record = drafts_of(sink)
    assert record is not None
    assert (record.drafts, record.drafted, record.certain) == (0, 0, True)
    assert runner.scrapes == 2
    assert "no_drafts" in sink.board.comparison(greedy=True).caveats
