"""A series: one race asked for several times, as it stands, live or rebuilt from the stored races. Pure.

The races know their place (which series, which one of how many), so a series needs no table of its own and outlives a
restart: what is missing at its end was stopped, or interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, structs

from app.race.repeats import Lap, Repeats, counted, repeats
from app.race.summary import RaceSummary
from app.race.types import LANES, LaneName, RaceSpec, Sampling, Schedule

SeriesStatus = Literal["running", "finished", "stopped", "failed", "interrupted"]


class Asked(Struct, frozen=True, kw_only=True):
    """What every race of a series is, and how many of them were asked for."""

    races: int
    workload: str | None
    prompt: str
    sampling: Sampling
    schedule: Schedule
    fresh_cache: bool


class Series(Struct, frozen=True, kw_only=True):
    """A series as it stands. ``over`` are its races that have ended, in order; ``running`` is the id of the one that
    runs or waits, None in the pause between two and at the end."""

    id: str
    status: SeriesStatus
    asked: Asked
    over: tuple[RaceSummary, ...]
    running: str | None
    repeats: Repeats

    @property
    def live(self) -> bool:
        """Whether more is to come."""
        return self.status == "running"

    @property
    def race_ids(self) -> tuple[str, ...]:
        """Every race begun so far, in order."""
        return (*(race.id for race in self.over), *(() if self.running is None else (self.running,)))


class SeriesSummary(Struct, frozen=True, kw_only=True):
    """JSON of GET /api/series/{id}. ``races`` are the ids of the races begun so far, in order."""

    id: str
    url: str
    status: SeriesStatus
    asked: int
    workload: str | None
    prompt: str
    sampling: Sampling
    schedule: Schedule
    fresh_cache: bool
    races: tuple[str, ...]
    repeats: Repeats


def who_goes_first(first: LaneName, number: int) -> LaneName:
    """The lane that starts the ``number``-th race (from 1) of a series begun by ``first``: they alternate."""
    other = LANES[1] if first == LANES[0] else LANES[0]
    return first if number % 2 else other


def that_count(over: Sequence[RaceSummary]) -> tuple[RaceSummary, ...]:
    """Those of the races that the figures of their series rest on."""
    laps = [Lap(races=(race,), busy_ms={}) for race in over]
    return tuple(race for lap in counted(laps) for race in lap.races)


def asked_of(spec: RaceSpec, races: int) -> Asked:
    """``races`` times ``spec``."""
    return Asked(
        races=races,
        workload=spec.workload,
        prompt=spec.prompt,
        sampling=spec.sampling,
        schedule=spec.schedule,
        fresh_cache=spec.cache_salt is not None,
    )


def ended_as(over: Sequence[RaceSummary], races: int) -> SeriesStatus | None:
    """How a series of ``races`` has ended with those that are over; None while the next one may follow.

    A race that was stopped or interrupted is the last, and so is one in which neither lane finished. A stop by hand may
    come when one lane has finished: the race is then "partial", and its other lane says "stopped".
    """
    if not over:
        return None
    last = over[-1]
    # an app that goes down leaves its open lanes as stopped, too
    if last.status == "interrupted":
        return "interrupted"
    if last.status == "stopped" or any(lane.status == "stopped" for lane in last.lanes.values()):
        return "stopped"
    if (last.series_number or len(over)) >= races:
        return "finished"
    return "failed" if last.status == "failed" else None


def reading(
    series: str, asked: Asked, over: Sequence[RaceSummary], *, status: SeriesStatus, running: str | None = None
) -> Series:
    """The series with the races that are over."""
    return Series(
        id=series,
        status=status,
        asked=asked,
        over=tuple(over),
        running=running,
        repeats=repeats(over, asked=asked.races),
    )


def rebuilt(series: str, over: Sequence[RaceSummary]) -> Series | None:
    """The series of stored races, of which nobody runs more; None when there are none."""
    if not over:
        return None
    like = over[0]
    asked = Asked(
        races=max(like.series_races or 0, len(over)),
        workload=like.workload,
        prompt=like.prompt,
        sampling=like.sampling,
        schedule=like.schedule,
        fresh_cache=like.fresh_cache,
    )
    return reading(series, asked, over, status=ended_as(over, asked.races) or "interrupted")


def summarize_series(series: Series) -> SeriesSummary:
    """The series as the contract's JSON."""
    told = structs.asdict(series.asked)
    return SeriesSummary(
        id=series.id,
        url=f"/series/{series.id}",
        status=series.status,
        asked=told.pop("races"),
        races=series.race_ids,
        repeats=series.repeats,
        **told,
    )
