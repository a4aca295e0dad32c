"""Events as JSON, and what holds of the fold whatever happens in a race."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.race.events import (
    ComparisonRead,
    Event,
    LaneChunk,
    LaneDrafts,
    LaneFailed,
    LaneFigures,
    LaneFinished,
    LaneStarted,
    LaneUsage,
    RaceFinished,
    RaceQueued,
    RaceStarted,
    from_json,
    to_json,
)
from app.race.scoreboard import Scoreboard
from app.race.summary import fold, summarize
from app.race.types import Acceptance, LaneError, SpecRecord
from tests.race.helpers import chunk, ended, meta, sent, started, usage

lanes = st.sampled_from(["baseline", "speculative"])
gaps = st.sampled_from([0.0, 0.001, 1.0, 17.5, 1e6])
counts = st.integers(0, 2000)


def maybe(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | of


records = st.builds(
    SpecRecord,
    source=st.sampled_from(["request", "server"]),
    drafts=counts,
    drafted=counts,
    accepted=counts,
    accepted_at_least=maybe(st.lists(counts, max_size=5).map(tuple)),
    histogram=maybe(st.lists(counts, max_size=5).map(tuple)),
    per_step_accepted=maybe(st.lists(counts, max_size=5).map(tuple)),
    exclusive=st.booleans(),
    reset=st.booleans(),
    certain=st.booleans(),
)
zero = st.just(0.0)
facts = st.one_of(
    st.builds(RaceQueued, t_ms=zero, position=st.integers(1, 9)),
    st.builds(RaceStarted, t_ms=zero, queue_ms=gaps, in_flight=st.integers(1, 3), conditions=st.just(("cold_start",))),
    st.builds(
        LaneStarted,
        t_ms=zero,
        lane=lanes,
        model=maybe(st.text(max_size=5)),
        method=maybe(st.text(max_size=3)),
        num_speculative_tokens=maybe(st.integers(1, 9)),
        speculating=maybe(st.booleans()),
        retried=st.booleans(),
    ),
    st.builds(
        LaneChunk,
        t_ms=zero,
        lane=lanes,
        text=st.text(max_size=8),
        tokens=maybe(st.integers(0, 9)),
        reasoning=st.booleans(),
        tokens_exact=st.booleans(),
        token_ids=maybe(st.lists(st.integers(0, 2**40), max_size=4).map(tuple)),
        tool_call=st.booleans(),
    ),
    st.builds(
        LaneUsage,
        t_ms=zero,
        lane=lanes,
        prompt_tokens=maybe(counts),
        completion_tokens=maybe(counts),
        cached_tokens=maybe(counts),
    ),
    st.builds(LaneDrafts, t_ms=zero, lane=lanes, record=records),
    st.builds(
        LaneFinished,
        t_ms=zero,
        lane=lanes,
        status=st.sampled_from(["finished", "stopped"]),
        finish_reason=maybe(st.just("stop")),
    ),
    st.builds(
        LaneFailed,
        t_ms=zero,
        lane=lanes,
        status=st.sampled_from(["failed", "cut_off", "aborted"]),
        error=st.just(LaneError(kind="cut_off", message="x")),
    ),
    st.builds(
        RaceFinished, t_ms=zero, status=st.sampled_from(["finished", "partial", "failed", "stopped", "interrupted"])
    ),
)
readings = st.one_of(
    st.builds(
        LaneFigures,
        t_ms=zero,
        lane=lanes,
        status=st.just("streaming"),
        ttft_ms=maybe(gaps),
        completion_tokens=maybe(counts),
    ),
    st.builds(ComparisonRead, t_ms=zero, speedup=maybe(gaps), caveats=st.just(("retried", "no_drafts"))),
)


@st.composite
def logs(draw: Any, of: Any = facts) -> list[Event]:
    """Any events in any order, with times that never go back."""
    at, found = 0.0, []
    for event in draw(st.lists(of, max_size=25)):
        at += draw(gaps)
        found.append(msgspec.structs.replace(event, t_ms=at))
    return found


def state(board: Scoreboard) -> Any:
    """All that can be read of a board."""
    more = {
        lane: (b.text, b.reasoning, b.token_ids, b.chunks, b.retried, b.called_tool) for lane, b in board.lanes.items()
    }
    return summarize(meta(), board), more, board.now_ms, board.position


@given(logs(st.one_of(facts, readings)))
def test_every_event_survives_json(events: list[Event]) -> None:
    for event in events:
        line = to_json(event)
        assert b"\n" not in line
        assert from_json(line) == event
        assert json.loads(line, parse_constant=pytest.fail)["type"] == type(event).__struct_config__.tag


@given(logs(st.one_of(facts, readings)), st.lists(st.integers(0, 25), max_size=5))
def test_the_fold_does_not_depend_on_how_a_log_is_cut(events: list[Event], cuts: list[int]) -> None:
    whole = fold(events)
    board = Scoreboard()
    points = sorted({0, len(events), *(cut % (len(events) + 1) for cut in cuts)})
    for a, b in pairwise(points):
        for event in events[a:b]:
            board.apply(from_json(to_json(event)))
        state(board)  # reading in between changes nothing
        board.comparison(greedy=True)
    assert state(board) == state(whole)


@given(logs())
def test_readings_change_nothing(events: list[Event]) -> None:
    board = Scoreboard()
    for event in events:
        board.apply(event)
        board.apply(LaneFigures(t_ms=event.t_ms, lane="baseline", status="failed", completion_tokens=99, ttft_ms=1.0))
        board.apply(ComparisonRead(t_ms=event.t_ms, speedup=9.0, verdict="faster"))
    assert state(board) == state(fold(events))


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [n for inner in value.values() for n in numbers_in(inner)]
    if isinstance(value, list):
        return [n for inner in value for n in numbers_in(inner)]
    return [value] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


@given(logs(), st.floats(0, 1e9))
def test_no_figure_is_ever_nan_infinite_or_negative(events: list[Event], later_ms: float) -> None:
    board = fold(events)
    for now_ms in (None, board.now_ms + later_ms):
        body = msgspec.json.encode(summarize(meta(), board, now_ms))
        found = numbers_in(json.loads(body, parse_constant=pytest.fail))
        assert all(math.isfinite(n) and n >= 0 for n in found)
        for lane in board.lanes:
            numbers = board.numbers(lane, now_ms, ending="finished")
            assert all(math.isfinite(n) and n >= 0 for n in numbers_in(msgspec.to_builtins(numbers)))


@given(logs())
def test_a_number_that_does_not_exist_is_never_zero(events: list[Event]) -> None:
    board = fold(events)
    for lane in board.lanes:
        numbers = board.numbers(lane)
        for value in (numbers.tpot_ms, numbers.decode_tokens_per_second):
            assert value is None or value > 0
        if numbers.completion_tokens:
            assert numbers.tokens_per_second is None or numbers.tokens_per_second > 0
    assert board.comparison(greedy=True).speedup != 0


@given(logs(), st.sampled_from(["failed", "cut_off", "aborted"]), lanes)
def test_a_lane_in_trouble_never_has_a_ratio(events: list[Event], status: Any, lane: Any) -> None:
    board = fold([*events, ended(lane, 1e9, status)])
    pair = board.comparison(greedy=True)
    assert (pair.speedup, pair.decode_speedup, pair.verdict) == (None, None, None)


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b'{"type":"nope","t_ms":1}',
        b'{"type":"race.queued","t_ms":1}',
        b'{"type":"lane.chunk","t_ms":1,"lane":"third","text":"","tokens":1}',
    ],
)
def test_what_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        from_json(line)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        from_json(b"{")


def test_events_are_flat_and_named_as_the_contract_names_them() -> None:
    figures = LaneFigures(
        t_ms=12.5,
        lane="speculative",
        status="streaming",
        completion_tokens=3,
        chunks=2,
        ttft_ms=4.0,
        acceptance=Acceptance(source="stream", rate=0.5, mean_length=3.0, drafts=None, drafted=None, accepted=4),
    )
    found = json.loads(to_json(figures))
    assert found["type"] == "lane.figures"
    assert (found["t_ms"], found["lane"], found["completion_tokens"], found["ttft_ms"]) == (12.5, "speculative", 3, 4.0)
    assert found["tpot_ms"] is None
    assert found["acceptance"]["source"] == "stream"
    assert json.loads(to_json(chunk("baseline", 1.0)))["type"] == "lane.chunk"


# ------------------------------------------------------------------------------------------------ Race JSON
RACE = {
    "id",
    "status",
    "workload",
    "prompt",
    "system",
    "sampling",
    "schedule",
    "created_at",
    "queue_ms",
    "in_flight",
    "recorded",
    "lanes",
    "comparison",
}
LANE = {
    "status",
    "error",
    "model",
    "method",
    "num_speculative_tokens",
    "text",
    "reasoning",
    "finish_reason",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "tokens_estimated",
    "chunks",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "tokens_per_second",
    "decode_tokens_per_second",
    "acceptance",
}


def test_the_race_json_has_every_field_of_the_contract() -> None:
    board = fold([started(), sent("baseline", 1), chunk("baseline", 5), usage("baseline", 6, 1), ended("baseline", 7)])
    found = json.loads(msgspec.json.encode(summarize(meta(), board)))
    assert set(found) >= RACE
    assert set(found["lanes"]) == {"baseline", "speculative"}
    assert all(set(lane) >= LANE for lane in found["lanes"].values())
    assert set(found["sampling"]) == {"temperature", "top_p", "seed", "max_tokens", "ignore_eos"}
    assert set(found["comparison"]) >= {"speedup", "decode_speedup", "verdict", "text", "diverges_at_token", "caveats"}
    assert found["recorded"] is False
    assert found["status"] == "running"
    assert found["lanes"]["speculative"]["status"] == "waiting"


def test_the_race_json_before_anything_happened_is_all_null() -> None:
    found = json.loads(msgspec.json.encode(summarize(meta(), Scoreboard())))
    assert (found["status"], found["queue_ms"], found["in_flight"]) == ("queued", None, None)
    for lane in found["lanes"].values():
        assert [lane[name] for name in ("ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_second", "completion_tokens")] == [
            None
        ] * 5
        assert lane["tokens_estimated"] is False
    assert found["comparison"]["speedup"] is None
