"""Why little or nothing was gained: tokens per pass, what a pass costs, and the one cause named; worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from app.race.cause import GAIN, NEEDED_TAU, USUAL_STEP_COST, cause
from app.race.scoreboard import Scoreboard
from app.race.types import SpecRecord
from tests.race.helpers import board, chunk, drafts, ended, exactly, over, sent, started


def finished(
    tpot_b: float, tpot_s: float, record: SpecRecord | None, *, ttft: tuple[float, float] = (10, 10), **rest: Any
) -> Scoreboard:
    """Both lanes wrote 101 tokens at these milliseconds per token, after these to the first."""
    events: list[Any] = [started(**rest)]
    for lane, tpot, first in (("baseline", tpot_b, ttft[0]), ("speculative", tpot_s, ttft[1])):
        last = first + 100 * tpot
        events += [sent(lane), chunk(lane, first, 1), chunk(lane, last, 100), ended(lane, last + 1)]  # type: ignore[arg-type]
    if record is not None:
        events.append(drafts("speculative", 5000, record))
    return board(*events, over(5001))


def accepted(n: int, *, drafted: int = 150, **rest: Any) -> SpecRecord:
    return SpecRecord(source="request", drafts=40, drafted=drafted, accepted=n, **rest)


def test_decode_speedup_is_tokens_per_pass_over_what_a_pass_costs() -> None:
    pair = finished(10, 6, accepted(60)).comparison(greedy=True)
    assert pair.tau == exactly(2.5)  # (101 - 1) / (101 - 1 - 60)
    assert pair.step_cost == exactly(1.5)  # 6 * 2.5 / 10
    assert pair.decode_speedup == exactly(10 / 6)  # 2.5 / 1.5
    assert pair.cause is None  # it gained


@pytest.mark.parametrize(
    ("tpot_s", "accepted_tokens", "tau", "cost", "named"),
    [
        # 100/90 tokens a pass, 12 * 1.111 / 10: 1.3755/1.111 = 1.238 against 1.333/1.31 = 1.018
        (12, 10, 100 / 90, 12 / 9, "low_acceptance"),
        # 1.25 and 1.5: 1.3755/1.25 = 1.1004 against 1.5/1.31 = 1.145
        (12, 20, 1.25, 1.5, "costly_steps"),
        # 2 tokens a pass would be plenty, but each costs 2.4 steps
        (12, 50, 2.0, 2.4, "costly_steps"),
        # nothing accepted at all, and hardly any cost
        (10.2, 0, 1.0, 1.02, "low_acceptance"),
    ],
)
def test_the_cause_is_what_is_farther_from_what_it_would_take(
    tpot_s: float, accepted_tokens: int, tau: float, cost: float, named: str
) -> None:
    pair = finished(10, tpot_s, accepted(accepted_tokens)).comparison(greedy=True)
    assert pair.tau == exactly(tau)
    assert pair.step_cost == exactly(cost)
    assert pair.cause == named


def test_the_example_of_the_talk_is_low_acceptance() -> None:
    # 1.12 tokens per pass at 1.31 steps each: 0.855x in decode
    assert cause(0.86, 1.12 / 1.31, 1.12, 1.31) == "low_acceptance"


def test_equally_far_is_called_low_acceptance_and_a_hair_more_cost_is_not() -> None:
    # NEEDED_TAU / tau == r / USUAL at tau = NEEDED_TAU / 1.2 and r = 1.2 * USUAL
    tau, cost = NEEDED_TAU / 1.2, USUAL_STEP_COST * 1.2
    assert cause(0.7, tau / cost, tau, cost * 0.9999) == "low_acceptance"
    assert cause(0.7, tau / cost, tau, cost * 1.0001) == "costly_steps"
    assert exactly(1.05 * 1.31) == NEEDED_TAU


@pytest.mark.parametrize("tau", [NEEDED_TAU, 1.5, 2.0, 5.0])
def test_enough_tokens_per_pass_are_never_blamed(tau: float) -> None:
    decode = GAIN - 1e-6  # as cheap as a step can be without a gain
    assert cause(0.99, decode, tau, tau / decode) == "costly_steps"


@pytest.mark.parametrize(("speedup", "named"), [(1.05, None), (1.0499, "low_acceptance"), (0.5, "low_acceptance")])
def test_a_cause_is_named_below_five_percent_only(speedup: float, named: str | None) -> None:
    assert cause(speedup, 1.0, 1.1, 1.1) == named


@pytest.mark.parametrize(
    ("decode", "named"), [(1.05, "prefill_bound"), (1.0499, "costly_steps"), (3.0, "prefill_bound")]
)
def test_writing_that_gained_was_eaten_by_the_first_token(decode: float, named: str) -> None:
    assert cause(1.0, decode, 2.0, 2.0 / decode) == named


def test_a_long_prompt_caps_the_gain_also_without_a_record() -> None:
    # baseline 8000 + 1000 ms, speculative 8000 + 500 ms: 9000 / 8500 = 1.0588; 8.5 s to the first token: 9000 / 9000
    assert finished(10, 5, None, ttft=(8000, 8000)).comparison(greedy=True).cause is None
    pair = finished(10, 5, None, ttft=(8000, 8500)).comparison(greedy=True)
    assert pair.speedup == exactly(1.0)
    assert (pair.cause, pair.tau, pair.step_cost) == ("prefill_bound", None, None)


@pytest.mark.parametrize("caveat", ["cold_start", "prefix_cache_differs"])
def test_a_first_token_that_was_spoilt_is_no_cause(caveat: str) -> None:
    rest: Any = {"conditions": (caveat,)} if caveat == "cold_start" else {}
    scores = finished(10, 5, None, ttft=(8000, 8500), **rest)
    if caveat == "prefix_cache_differs":
        scores.lanes["baseline"].usage = scores.lanes["baseline"].usage.__class__(cached_tokens=512)
    pair = scores.comparison(greedy=True)
    assert caveat in pair.caveats
    assert pair.cause is None


def test_costly_steps_of_two_servers_on_one_device_are_its_fault_first() -> None:
    shared = finished(10, 12, accepted(50), conditions=("shared_device",)).comparison(greedy=True)
    assert shared.cause == "shared_device"
    # rarely accepted drafts are not: racing in turn would not help them
    assert (
        finished(10, 12, accepted(5), conditions=("shared_device",)).comparison(greedy=True).cause == "low_acceptance"
    )


@pytest.mark.parametrize(
    "record",
    [
        None,
        accepted(0, drafted=0),  # no drafts ran
        accepted(20, exclusive=False),  # others are in the counters
        accepted(0, certain=False),  # counters that restarted
        accepted(100),  # no pass is left to divide by
    ],
)
def test_a_missing_number_names_no_cause(record: SpecRecord | None) -> None:
    pair = finished(10, 12, record).comparison(greedy=True)
    assert pair.verdict == "slower"
    assert (pair.tau, pair.step_cost, pair.cause) == (None, None, None)


def test_the_estimate_from_chunk_sizes_is_no_tokens_per_pass() -> None:
    events = [sent("speculative", num_speculative_tokens=4), chunk("speculative", 10, 1), chunk("speculative", 60, 5)]
    scores = board(started(), sent("baseline"), chunk("baseline", 10, 1), chunk("baseline", 60, 1), events)
    assert scores.lanes["speculative"].acceptance is not None
    assert scores.comparison(70, greedy=True).tau is None


@pytest.mark.parametrize("status", ["failed", "stopped"])
def test_an_unfinished_lane_has_no_cause(status: str) -> None:
    scores = board(
        started(),
        [sent("baseline"), chunk("baseline", 10, 1), chunk("baseline", 110, 10), ended("baseline", 111)],
        [sent("speculative"), chunk("speculative", 10, 1), chunk("speculative", 210, 10)],
        [drafts("speculative", 300, accepted(3)), ended("speculative", 301, status), over(302, "partial")],
    )
    assert scores.comparison(greedy=True).cause is None
