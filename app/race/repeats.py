"""Repeated races as one result: median, lowest and highest of every figure, paired speedups, and the verdict. Pure.

A *lap* is one repeat: a single race, or, under load, all the races that ran at once. Only a lap whose races all
finished on both lanes counts, and a cold one only where all are cold (``counted``). Figures of a lane are those of its
requests, pooled over the laps. Of each lap there is one value (for a lap of one race it is the race's own figure):

    speedup            median tokens/s of the speculative requests / median tokens/s of the baseline's
    decode speedup     median TPOT of the baseline's requests / median TPOT of the speculative ones
    acceptance         A / D, 1 + A / S and (N - 1) / (N - 1 - A) over the sums of its requests
    step cost r        tau / decode speedup, with tau the effective tokens per pass
    all tokens/s       all output tokens of the lane / the time in which the lane was at work

The verdict takes the lowest decode speedup of the laps (metrics.md, "Is it worth it?"). A value that does not exist
is left out; ``Spread.values`` says how many there were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

from msgspec import Struct

from app.race.acceptance import effective_tokens_per_pass, ratio
from app.race.cause import cause
from app.race.summary import LaneSummary, RaceSummary
from app.race.types import LANES, Acceptance, AcceptanceSource, Cause, Caveat, LaneName

LEAST_REPEATS = 3
LEAST_TOKENS = 64
WORTH_IT_ABOVE = 1.15
HURTS_BELOW = 0.95

Worth = Literal["worth_it", "marginal", "hurts"]


class Spread(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Median, lowest and highest of the values there were, and the values in the order of the races. ``places`` says
    which of those asked for a value (from 0) had one, in the same order; it is empty when all had."""

    median: float
    low: float
    high: float
    values: tuple[float, ...]
    places: tuple[int, ...] = ()


class LaneSpreads(Struct, frozen=True, kw_only=True):
    """Figures of one lane over all counted requests; ``all_tokens_per_second`` has one value a lap."""

    ttft_ms: Spread | None
    tpot_ms: Spread | None
    e2e_ms: Spread | None
    tokens_per_second: Spread | None
    decode_tokens_per_second: Spread | None
    completion_tokens: Spread | None
    all_tokens_per_second: Spread | None = None


class Lap(Struct, frozen=True, kw_only=True):
    """One repeat. ``busy_ms`` is how long a lane was at work on its requests, from the first request sent to the last
    token; None where it did not end."""

    races: tuple[RaceSummary, ...]
    busy_ms: dict[LaneName, float | None]
    number: int = 1
    first: LaneName = "baseline"

    @property
    def finished(self) -> bool:
        """Whether every race finished on both lanes."""
        return bool(self.races) and all(race.status == "finished" for race in self.races)

    @property
    def cold(self) -> bool:
        """Whether a server had not generated anything before one of the races, or did not tell."""
        return any("cold_start" in race.comparison.caveats for race in self.races)


class Repeats(Struct, frozen=True, kw_only=True):
    """What ``asked`` laps gave. ``counted`` laps finished on both lanes, with ``requests`` requests on each lane;
    ``cold`` more finished and were left out (``counted`` below).

    ``caveats`` says of how many counted requests each holds; ``cause`` (app/race/cause.py) is taken from the medians;
    ``verdict`` is None with the reason beside it.
    """

    asked: int
    counted: int
    requests: int
    lanes: dict[LaneName, LaneSpreads]
    speedup: Spread | None
    decode_speedup: Spread | None
    acceptance_sources: tuple[AcceptanceSource, ...]
    acceptance_rate: Spread | None
    mean_length: Spread | None
    effective_tokens_per_pass: Spread | None
    tau: Spread | None
    step_cost: Spread | None
    identical: int
    diverged: int
    not_comparable: int
    caveats: dict[Caveat, int]
    cause: Cause | None
    verdict: Worth | None
    why_no_verdict: str | None
    cold: int = 0


class _Drafts(Struct, frozen=True, kw_only=True):
    """Acceptance of one lap."""

    rate: float | None = None
    mean_length: float | None = None
    tau: float | None = None


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median, lowest and highest; None when there is no value. Missing ones are left out."""
    given = tuple(values)
    found = tuple(value for value in given if value is not None)
    if not found:
        return None
    places = tuple(i for i, value in enumerate(given) if value is not None) if len(found) < len(given) else ()
    return Spread(median=median(found), low=min(found), high=max(found), values=found, places=places)


def counted(laps: Sequence[Lap]) -> list[Lap]:
    """The laps that count: those that finished, without the cold ones as soon as a warm one is among them. Where all
    are cold (a server that never tells) they count, and the caveat says so."""
    finished = [lap for lap in laps if lap.finished]
    return [lap for lap in finished if not lap.cold] or finished


def cold_left_out(count: int, of: str = "race") -> str:
    """In words: "1 cold race left out"."""
    return f"{count} cold {of}{'' if count == 1 else 's'} left out"


def repeats(summaries: Sequence[RaceSummary], *, asked: int) -> Repeats:
    """The result of races that ran one after the other; warm-ups are not among them."""
    laps = [Lap(races=(race,), busy_ms={lane: race.lanes[lane].e2e_ms for lane in LANES}) for race in summaries]
    return of_laps(laps, asked=asked)


def of_laps(laps: Sequence[Lap], *, asked: int) -> Repeats:
    """The result of ``laps``, of which ``asked`` were wanted."""
    those = counted(laps)
    cold = sum(lap.finished for lap in laps) - len(those)
    races = [race for lap in those for race in lap.races]
    drafts = [_drafts(lap) for lap in those]
    decode = [_decode_speedup(lap) for lap in those]
    texts = Counter(race.comparison.text for race in races)
    caveats: Counter[Caveat] = Counter(caveat for race in races for caveat in race.comparison.caveats)
    speedup, decode_speedup = spread(_speedup(lap) for lap in those), spread(decode)
    tau = spread(lap.tau for lap in drafts)
    step_cost = spread(ratio(lap.tau, gained) for lap, gained in zip(drafts, decode, strict=True))
    why = _why_not(races, len(those), asked, decode_speedup, cold)
    middles = (_median(one) for one in (speedup, decode_speedup, tau, step_cost))
    return Repeats(
        asked=asked,
        counted=len(those),
        requests=len(races),
        lanes={lane: _lane(those, lane) for lane in LANES},
        speedup=speedup,
        decode_speedup=decode_speedup,
        acceptance_sources=tuple(sorted({took.source for race in races if (took := _acceptance(race)) is not None})),
        acceptance_rate=spread(lap.rate for lap in drafts),
        mean_length=spread(lap.mean_length for lap in drafts),
        effective_tokens_per_pass=tau,
        tau=tau,
        step_cost=step_cost,
        identical=texts["identical"],
        diverged=texts["diverged"],
        not_comparable=texts["not_comparable"],
        caveats=dict(caveats),
        cause=cause(*middles, shared="shared_device" in caveats),
        verdict=worth(decode_speedup.low) if why is None and decode_speedup is not None else None,
        why_no_verdict=why,
        cold=cold,
    )


def worth(lowest: float) -> Worth:
    """The verdict from the lowest decode speedup of the laps."""
    if lowest > WORTH_IT_ABOVE:
        return "worth_it"
    return "hurts" if lowest < HURTS_BELOW else "marginal"


def _why_not(races: list[RaceSummary], count: int, asked: int, decode: Spread | None, cold: int) -> str | None:
    """Why there is no verdict, None when there may be one."""
    if count < LEAST_REPEATS:
        of = f"{count} of {asked} repeats counted" if count < asked else f"only {asked} asked for"
        of += f", {cold_left_out(cold)}" if cold else ""
        return f"a verdict needs {LEAST_REPEATS} repeats: {of}"
    if all(race.lanes["speculative"].speculating is False for race in races):
        return "the speculative server does not speculate"
    drafted = [took.drafted for race in races if (took := _acceptance(race)) is not None and took.drafted is not None]
    if not drafted:
        return "whether drafts ran is not known: the server gave neither a record nor counters"
    if not any(drafted):
        return "no drafts ran"
    if any("prefix_cache_differs" in race.comparison.caveats for race in races):
        return "the prefix cache served the two lanes differently"
    lengths = [race.lanes[lane].completion_tokens or 0 for race in races for lane in LANES]
    if min(lengths) < LEAST_TOKENS:
        return f"a verdict needs answers of {LEAST_TOKENS} tokens: the shortest had {min(lengths)}"
    if decode is None or len(decode.values) < LEAST_REPEATS:
        return "a verdict needs token counts of both lanes: they are missing or estimates"
    return None


def _lane(laps: list[Lap], lane: LaneName) -> LaneSpreads:
    seen = [race.lanes[lane] for lap in laps for race in lap.races]
    return LaneSpreads(
        ttft_ms=spread(one.ttft_ms for one in seen),
        tpot_ms=spread(one.tpot_ms for one in seen),
        e2e_ms=spread(one.e2e_ms for one in seen),
        tokens_per_second=spread(one.tokens_per_second for one in seen),
        decode_tokens_per_second=spread(one.decode_tokens_per_second for one in seen),
        completion_tokens=spread(one.completion_tokens for one in seen),
        all_tokens_per_second=spread(_all_tokens_per_second(lap, lane) for lap in laps),
    )


def _all_tokens_per_second(lap: Lap, lane: LaneName) -> float | None:
    tokens = 0
    for race in lap.races:
        one = race.lanes[lane]
        if one.completion_tokens is None or one.tokens_estimated:
            return None
        tokens += one.completion_tokens
    per_ms = ratio(tokens, lap.busy_ms[lane])
    return None if per_ms is None else 1000 * per_ms


def _speedup(lap: Lap) -> float | None:
    if any(race.comparison.speedup is None for race in lap.races):
        return None
    b, s = (_middle(lap, lane, "tokens_per_second") for lane in LANES)
    return ratio(s, b)


def _decode_speedup(lap: Lap) -> float | None:
    if any(race.comparison.decode_speedup is None for race in lap.races):
        return None
    b, s = (_middle(lap, lane, "tpot_ms") for lane in LANES)
    return ratio(b, s)


def _middle(lap: Lap, lane: LaneName, figure: Literal["tokens_per_second", "tpot_ms"]) -> float | None:
    return _median(spread(getattr(race.lanes[lane], figure) for race in lap.races))


def _median(found: Spread | None) -> float | None:
    return None if found is None else found.median


def _acceptance(race: RaceSummary) -> Acceptance | None:
    return race.lanes["speculative"].acceptance


def _drafts(lap: Lap) -> _Drafts:
    """Acceptance over the sums of the lap's requests that have it."""
    lanes: list[tuple[LaneSummary, Acceptance]] = []
    for race in lap.races:
        took = _acceptance(race)
        if took is not None and took.accepted is not None:
            lanes.append((race.lanes["speculative"], took))
    if len(lanes) == 1:
        took = lanes[0][1]
        return _Drafts(rate=took.rate, mean_length=took.mean_length, tau=took.effective_tokens_per_pass)
    accepted = sum(took.accepted or 0 for _, took in lanes)
    steps = sum(took.drafts or 0 for _, took in lanes)
    per_step = ratio(accepted, steps)
    # the first token of each request comes from its prefill, and one of them is taken off by the formula
    tokens = 1 + sum((lane.completion_tokens or 0) - 1 for lane, _ in lanes)
    known = bool(lanes) and all(took.effective_tokens_per_pass is not None for _, took in lanes)
    return _Drafts(
        rate=ratio(accepted, sum(took.drafted or 0 for _, took in lanes)),
        mean_length=None if per_step is None else 1 + per_step,
        tau=effective_tokens_per_pass(tokens, accepted) if known else None,
    )
