"""Repeated races: medians and spreads, paired speedups, pooled laps and the verdict, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from app.race.events import Event
from app.race.repeats import Lap, cold_left_out, counted, of_laps, repeats, spread, worth
from app.race.summary import RaceSummary, summarize
from app.race.types import LaneName, SpecRecord
from tests.race.helpers import board, chunk, drafts, ended, exactly, meta, over, sent, spec, started, usage

RECORD = SpecRecord(source="request", drafts=25, drafted=100, accepted=75)
"""Rate 0.75, mean length 1 + 75/25 = 4; with 101 tokens 100 / (100 - 75) = 4 tokens per pass."""


def lane(
    name: LaneName,
    every_ms: float,
    sizes: list[int],
    *,
    first_ms: float = 100.0,
    status: Any = "finished",
    token: int = 7,
) -> list[Event]:
    """Sent at 0, the first chunk at ``first_ms``, one every ``every_ms``; ``sizes`` tokens each."""
    times = [first_ms + every_ms * i for i in range(len(sizes))]
    steps = [chunk(name, t, n, token_ids=(token,) * n) for t, n in zip(times, sizes, strict=True)]
    return [sent(name, 0.0), *steps, ended(name, times[-1] + 1, status)]


def race(
    *,
    base_ms: float = 10.0,
    spec_ms: float = 20.0,
    record: SpecRecord | None = RECORD,
    steps: int = 25,
    status: Any = "finished",
    temperature: float = 0.0,
    token: int = 7,
    more: tuple[Event, ...] = (),
    conditions: tuple[Any, ...] = (),
) -> RaceSummary:
    """101 tokens on both lanes (with 25 ``steps``): one at a time on the baseline, 1 and then 4 at a time on the other.

    With the defaults TPOT is 10 and 5 ms, E2E 1100 and 600 ms: decode speedup 2, speedup 11 / 6.
    """
    n = 1 + 4 * steps
    folded = board(
        started(0.0, conditions=conditions),
        lane("baseline", base_ms, [1] * n),
        lane("speculative", spec_ms, [1, *[4] * steps], status=status, token=token),
        [] if record is None else [drafts("speculative", 5000.0, record)],
        more,
        over(6000.0, "finished" if status == "finished" else "partial"),
    )
    return summarize(meta(spec=spec(temperature=temperature)), folded)


# ------------------------------------------------------------------------------------------------ spread
@pytest.mark.parametrize(
    ("values", "median", "low", "high"),
    [
        ([3.0], 3.0, 3.0, 3.0),
        ([3.0, 1.0, 2.0], 2.0, 1.0, 3.0),
        ([4.0, 1.0, 2.0, 10.0], 3.0, 1.0, 10.0),
        ([None, 5.0, None, 1.0], 3.0, 1.0, 5.0),
    ],
)
def test_a_spread_is_the_median_with_lowest_and_highest_of_what_there_is(
    values: list[float | None], median: float, low: float, high: float
) -> None:
    found = spread(values)
    assert found is not None
    assert (found.median, found.low, found.high) == (median, low, high)
    assert found.values == tuple(value for value in values if value is not None), "in the order of the races"


@pytest.mark.parametrize("values", [[], [None, None]])
def test_a_spread_of_nothing_is_none(values: list[float | None]) -> None:
    assert spread(values) is None


# ------------------------------------------------------------------------------------------------ races
def test_the_figures_of_three_races() -> None:
    found = repeats([race(), race(spec_ms=25.0), race(base_ms=8.0)], asked=3)
    assert (found.asked, found.counted, found.requests) == (3, 3, 3)
    # TPOT_b 10, 10, 8; TPOT_s 20 * 25 / 100 = 5, 6.25, 5
    assert found.decode_speedup is not None
    assert found.decode_speedup.values == (2.0, 1.6, 1.6)
    assert (found.decode_speedup.median, found.decode_speedup.low, found.decode_speedup.high) == (1.6, 1.6, 2.0)
    # E2E_b 1100, 1100, 900; E2E_s 600, 725, 600, all with 101 tokens
    assert found.speedup is not None
    assert found.speedup.values == tuple(exactly(value) for value in (11 / 6, 1100 / 725, 1.5))
    assert found.speedup.median == exactly(1100 / 725)
    base, fast = found.lanes["baseline"], found.lanes["speculative"]
    assert base.tpot_ms is not None
    assert base.tpot_ms.values == (10.0, 10.0, 8.0)
    assert base.e2e_ms is not None
    assert base.e2e_ms.median == 1100.0
    assert fast.e2e_ms is not None
    assert fast.e2e_ms.values == (600.0, 725.0, 600.0)
    assert fast.ttft_ms is not None
    assert fast.ttft_ms.median == 100.0
    assert fast.completion_tokens is not None
    assert fast.completion_tokens.values == (101, 101, 101)
    assert fast.tokens_per_second is not None
    assert fast.tokens_per_second.median == exactly(101 / 0.6)
    assert fast.decode_tokens_per_second is not None
    assert fast.decode_tokens_per_second.values == (200.0, 160.0, 200.0)
    assert (found.identical, found.diverged, found.not_comparable) == (3, 0, 0)


def test_acceptance_tau_and_step_cost_come_from_the_records() -> None:
    lower = SpecRecord(source="request", drafts=50, drafted=200, accepted=50)
    found = repeats([race(), race(record=lower), race()], asked=3)
    assert found.acceptance_sources == ("request",)
    for figure, values in (
        (found.acceptance_rate, (0.75, 0.25, 0.75)),
        (found.mean_length, (4.0, 2.0, 4.0)),
        (found.effective_tokens_per_pass, (4.0, 2.0, 4.0)),  # 100 / (100 - 75), 100 / (100 - 50)
        (found.tau, (4.0, 2.0, 4.0)),
        (found.step_cost, (2.0, 1.0, 2.0)),  # tau / 2
    ):
        assert figure is not None
        assert figure.values == values


def test_a_race_that_did_not_finish_is_asked_and_not_counted() -> None:
    found = repeats([race(), race(status="cut_off", spec_ms=1.0), race()], asked=5)
    assert (found.asked, found.counted, found.requests) == (5, 2, 2)
    assert found.decode_speedup is not None
    assert found.decode_speedup.values == (2.0, 2.0)
    assert found.lanes["baseline"].tpot_ms is not None
    assert len(found.lanes["baseline"].tpot_ms.values) == 2, "a figure of a race that does not count is in no spread"
    assert (found.verdict, found.why_no_verdict) == (None, "a verdict needs 3 repeats: 2 of 5 repeats counted")


def test_nothing_counted_is_no_figure() -> None:
    found = repeats([], asked=3)
    assert (found.counted, found.speedup, found.acceptance_rate, found.tau) == (0, None, None, None)
    assert found.lanes["speculative"].tokens_per_second is None
    assert found.verdict is None
    assert found.cause is None


def test_a_missing_acceptance_is_left_out_and_not_zero() -> None:
    found = repeats([race(), race(record=None), race()], asked=3)
    assert found.acceptance_rate is not None
    assert found.acceptance_rate.values == (0.75, 0.75)
    assert found.decode_speedup is not None
    assert len(found.decode_speedup.values) == 3


def test_texts_and_caveats_are_counted_by_race() -> None:
    found = repeats([race(), race(token=8), race(temperature=1.0, conditions=("scheduling_differs",))], asked=3)
    assert (found.identical, found.diverged, found.not_comparable) == (1, 1, 1)
    assert found.caveats == {"text_diverged": 1, "scheduling_differs": 1}


# ------------------------------------------------------------------------------------------------ cold
def test_p22_a_cold_race_was_averaged_in() -> None:
    # cold: TPOT 10 and 50, warm: 10 and 5
    cold = race(spec_ms=200.0, conditions=("cold_start",))
    found = repeats([cold, race(), race(), race()], asked=4)
    assert (found.counted, found.cold, found.requests) == (3, 1, 3)
    assert found.decode_speedup is not None
    assert found.decode_speedup.values == (2.0, 2.0, 2.0)
    assert (found.verdict, found.caveats) == ("worth_it", {})


def test_p22_cold_races_count_where_no_race_is_warm() -> None:
    found = repeats(
        [race(conditions=("cold_start",)), race(conditions=("cold_start",)), race(status="failed")], asked=3
    )
    assert (found.counted, found.cold) == (2, 0)
    assert found.caveats == {"cold_start": 2}
    # a warm race that did not finish leaves no figure to take their place


def test_p22_the_verdict_that_a_cold_race_costs_says_so() -> None:
    found = repeats([race(conditions=("cold_start",)), race(), race()], asked=3)
    assert found.why_no_verdict == "a verdict needs 3 repeats: 2 of 3 repeats counted, 1 cold race left out"


def test_p22_a_lap_under_load_is_cold_when_one_of_its_races_is() -> None:
    busy: dict[LaneName, float | None] = {"baseline": 1.0, "speculative": 1.0}
    laps = [Lap(races=(race(), race(conditions=("cold_start",))), busy_ms=busy), Lap(races=(race(),), busy_ms=busy)]
    assert counted(laps) == [laps[1]]
    assert cold_left_out(2, "repeat") == "2 cold repeats left out"


def test_a_spread_knows_which_races_lack_a_value() -> None:
    some, every = spread([None, 5.0, None, 1.0]), spread([2.0, 1.0])
    assert some is not None
    assert every is not None
    assert (some.places, every.places) == ((1, 3), ())


# ------------------------------------------------------------------------------------------------ load
def test_a_lap_under_load_is_one_paired_value_from_the_medians_of_its_requests() -> None:
    # TPOT_b 10, 8, 12 -> 10; TPOT_s 5, 5, 2.5 -> 5
    races = (race(), race(base_ms=8.0), race(base_ms=12.0, spec_ms=10.0))
    lap = Lap(races=races, busy_ms={"baseline": 1300.0, "speculative": 606.0})
    found = of_laps([lap], asked=1)
    assert (found.counted, found.requests) == (1, 3)
    assert found.decode_speedup is not None
    assert found.decode_speedup.values == (2.0,)
    # tokens/s: 101 / 1.1, 101 / 0.9, 101 / 1.3 and 101 / 0.6, 101 / 0.6, 101 / 0.35
    assert found.speedup is not None
    assert found.speedup.values == (exactly(1.1 / 0.6),)
    base, fast = found.lanes["baseline"], found.lanes["speculative"]
    assert base.tpot_ms is not None
    assert base.tpot_ms.values == (10.0, 8.0, 12.0), "figures of the lane are pooled"
    assert base.all_tokens_per_second is not None
    assert base.all_tokens_per_second.median == exactly(303 / 1.3)
    assert fast.all_tokens_per_second is not None
    assert fast.all_tokens_per_second.median == exactly(500.0)


def test_acceptance_under_load_is_of_the_sums() -> None:
    lower = SpecRecord(source="request", drafts=75, drafted=300, accepted=25)
    lap = Lap(races=(race(), race(record=lower)), busy_ms={"baseline": 1100.0, "speculative": 600.0})
    found = of_laps([lap], asked=1)
    assert found.acceptance_rate is not None
    assert found.acceptance_rate.values == (0.25,)  # (75 + 25) / (100 + 300), not the mean of 0.75 and 0.083
    assert found.mean_length is not None
    assert found.mean_length.values == (2.0,)  # 1 + 100 / 100
    assert found.tau is not None
    assert found.tau.values == (2.0,)  # 200 / (200 - 100)
    assert found.step_cost is not None
    assert found.step_cost.values == (1.0,)


def test_a_lap_counts_when_all_its_races_do() -> None:
    busy: dict[LaneName, float | None] = {"baseline": 1100.0, "speculative": None}
    laps = [Lap(races=(race(), race(status="failed")), busy_ms=busy), Lap(races=(race(), race()), busy_ms=busy)]
    found = of_laps(laps, asked=2)
    assert (found.counted, found.requests) == (1, 2)
    assert found.lanes["speculative"].all_tokens_per_second is None
    assert Lap(races=(), busy_ms=busy).finished is False


# ------------------------------------------------------------------------------------------------ verdict
@pytest.mark.parametrize(
    ("lowest", "verdict"),
    [
        (2.0, "worth_it"),
        (1.1501, "worth_it"),
        (1.15, "marginal"),
        (1.0, "marginal"),
        (0.95, "marginal"),
        (0.9499, "hurts"),
    ],
)
def test_the_verdict_has_its_limits_where_the_definition_puts_them(lowest: float, verdict: str) -> None:
    assert worth(lowest) == verdict


def test_the_verdict_takes_the_lowest_decode_speedup_and_not_the_median() -> None:
    # TPOT_s 5, 5, 11: decode 2, 2, 0.909
    found = repeats([race(), race(), race(spec_ms=44.0)], asked=3)
    assert found.decode_speedup is not None
    assert found.decode_speedup.median == 2.0
    assert (found.verdict, found.why_no_verdict) == ("hurts", None)
    assert repeats([race(), race(), race()], asked=3).verdict == "worth_it"
    assert repeats([race(), race(), race(spec_ms=40.0)], asked=3).verdict == "marginal"


def test_a_result_that_gained_nothing_has_its_cause() -> None:
    # decode 10 / 12.5 = 0.8 at 4 tokens per pass: a pass costs 5 plain steps
    found = repeats([race(spec_ms=50.0)] * 3, asked=3)
    assert found.step_cost is not None
    assert found.step_cost.median == 5.0
    assert (found.verdict, found.cause) == ("hurts", "costly_steps")
    shared = repeats([race(spec_ms=50.0, conditions=("shared_device",))] * 3, asked=3)
    assert shared.cause == "shared_device"


def short() -> RaceSummary:
    """61 tokens."""
    return race(steps=15, record=SpecRecord(source="request", drafts=15, drafted=60, accepted=45))


def without_speculation(one: RaceSummary) -> RaceSummary:
    fast = structs.replace(one.lanes["speculative"], speculating=False)
    return structs.replace(one, lanes={"baseline": one.lanes["baseline"], "speculative": fast})


NO_DRAFTS = SpecRecord(source="request", drafts=0, drafted=0, accepted=0)
CACHED = (usage("baseline", 5000.0, 101, cached_tokens=16), usage("speculative", 5000.0, 101, cached_tokens=0))


@pytest.mark.parametrize(
    ("races", "asked", "why"),
    [
        ([race(), race()], 2, "a verdict needs 3 repeats: only 2 asked for"),
        ([race(), race()], 4, "a verdict needs 3 repeats: 2 of 4 repeats counted"),
        ([race(), short(), race()], 3, "a verdict needs answers of 64 tokens: the shortest had 61"),
        ([race(record=NO_DRAFTS)] * 3, 3, "no drafts ran"),
        (
            [race(record=None)] * 3,
            3,
            "whether drafts ran is not known: the server gave neither a record nor counters",
        ),
        ([without_speculation(race(record=None))] * 3, 3, "the speculative server does not speculate"),
        ([race(), race(), race(more=CACHED)], 3, "the prefix cache served the two lanes differently"),
    ],
)
def test_there_is_no_verdict_and_the_reason_is_said(races: list[RaceSummary], asked: int, why: str) -> None:
    found = repeats(races, asked=asked)
    assert (found.verdict, found.why_no_verdict) == (None, why)


def test_answers_of_exactly_64_tokens_are_enough() -> None:
    # 1 + 4 * 16 = 65 streamed; the server's own count is 64
    counts = (usage("baseline", 5000.0, 64), usage("speculative", 5000.0, 64))
    found = repeats([race(steps=16, more=counts)] * 3, asked=3)
    assert found.why_no_verdict is None
