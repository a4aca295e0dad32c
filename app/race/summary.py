"""A race as the contract's JSON, folded from its events: the same for a live race, a stored one and a recording."""

from __future__ import annotations

from msgspec import Struct, structs

from app.race.divergence import Divergence
from app.race.events import Event
from app.race.fairness import conditions
from app.race.scoreboard import LaneBoard, Scoreboard
from app.race.types import (
    LANES,
    Acceptance,
    Comparison,
    Condition,
    LaneError,
    LaneName,
    LaneStatus,
    RaceSpec,
    RaceStatus,
    Recorded,
    Sampling,
    Schedule,
)


class RaceMeta(Struct, frozen=True, kw_only=True):
    """What is known of a race besides its events. ``created_at`` is ISO 8601, UTC."""

    id: str
    spec: RaceSpec
    created_at: str
    recorded: Recorded | None = None
    vllm: str | None = None
    """Version of the servers, as far as they told it."""
    origin: str | None = None
    """For a replay: id of the race that is played."""
    series: str | None = None
    """Id of the series that the race belongs to: the ``series_number``-th (from 1) of ``series_races`` asked for."""
    series_number: int | None = None
    series_races: int | None = None


class StoredRace(Struct, frozen=True):
    """A race as kept or recorded: all there is to know about it."""

    meta: RaceMeta
    events: list[Event]


class LaneSummary(Struct, frozen=True, kw_only=True):
    """LANE of the contract."""

    status: LaneStatus
    error: LaneError | None
    model: str | None
    method: str | None
    num_speculative_tokens: int | None
    speculating: bool | None
    text: str
    reasoning: str
    finish_reason: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    tokens_estimated: bool
    chunks: int
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None
    tokens_per_second: float | None
    decode_tokens_per_second: float | None
    acceptance: Acceptance | None


class RaceSummary(Struct, frozen=True, kw_only=True):
    """Race JSON of the contract."""

    id: str
    status: RaceStatus
    workload: str | None
    prompt: str
    system: str | None
    sampling: Sampling
    schedule: Schedule
    created_at: str
    queue_ms: float | None
    in_flight: int | None
    recorded: Recorded | bool
    lanes: dict[LaneName, LaneSummary]
    comparison: Comparison
    divergence: Divergence | None = None
    """Where the texts part, when they were compared and differ."""
    fresh_cache: bool = False
    """Whether both servers were asked not to reuse a prompt of another race."""
    conditions: tuple[Condition, ...] = ()
    first: LaneName = "baseline"
    """Who went first, or started first."""
    vllm: str | None = None
    """Version of the speculative server, as far as it told it."""
    series: str | None = None
    """Id of the series that the race belongs to, None for a single race."""
    series_number: int | None = None
    series_races: int | None = None


def fold(events: list[Event]) -> Scoreboard:
    """The scoreboard at the end of ``events``."""
    board = Scoreboard()
    for event in events:
        board.apply(event)
    return board


def summarize(meta: RaceMeta, board: Scoreboard, now_ms: float | None = None) -> RaceSummary:
    """The race at ``now_ms`` (race clock; default: its newest event)."""
    spec = meta.spec
    return RaceSummary(
        id=meta.id,
        status=board.status,
        workload=spec.workload,
        prompt=spec.prompt,
        system=spec.system,
        sampling=spec.sampling,
        schedule=spec.schedule,
        created_at=meta.created_at,
        queue_ms=board.queue_ms,
        in_flight=board.in_flight,
        recorded=meta.recorded or False,
        lanes={lane: _lane(board.lanes[lane], board, now_ms) for lane in LANES},
        comparison=board.comparison(now_ms, greedy=spec.sampling.temperature == 0),
        divergence=board.same_text(greedy=spec.sampling.temperature == 0).divergence,
        fresh_cache=spec.cache_salt is not None,
        conditions=conditions(spec, board, now_ms),
        first=spec.first,
        vllm=meta.vllm,
        series=meta.series,
        series_number=meta.series_number,
        series_races=meta.series_races,
    )


def _lane(lane: LaneBoard, board: Scoreboard, now_ms: float | None) -> LaneSummary:
    numbers = board.numbers(lane.lane, now_ms)
    if board.over and numbers.status == "streaming":
        # the app went down with the lane open: nothing streams any more
        numbers = structs.replace(numbers, status="stopped")
    return LaneSummary(
        **structs.asdict(numbers),
        **structs.asdict(lane.identity),
        error=lane.error,
        speculating=lane.speculating,
        text=lane.text,
        reasoning=lane.reasoning,
        finish_reason=lane.finish_reason,
    )
