"""Acceptance from the server's own record, and the live estimate from chunk sizes; worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from app.race.acceptance import (
    StreamEstimate,
    conditional,
    effective_tokens_per_pass,
    from_record,
    ratio,
    share_of_output,
)
from app.race.records import record_from_meta_info, record_from_metrics
from app.race.types import Acceptance, SpecRecord
from tests.race.helpers import exactly

# what vllm 0.32.0 sent for tests/fixtures/sse/json_solo_speculative
REAL: dict[str, Any] = {
    "mean_acceptance_length": 4.0,
    "draft_acceptance_rate": 0.75,
    "acceptance_histogram": [6, 0, 6, 10, 24],
    "num_spec_steps": 46,
    "num_accepted_draft_tokens": 138,
    "num_draft_tokens": 184,
    "num_spec_tokens": 4,
}


def record(**changed: Any) -> SpecRecord | None:
    return record_from_metrics({"speculative_decoding": REAL | changed})


def test_rate_length_and_positions_of_the_servers_record() -> None:
    found = record()
    assert found is not None
    figures = from_record(found, 200)
    assert figures.source == "request"
    assert figures.rate == 0.75  # 138 / 184
    assert figures.mean_length == 4.0  # 1 + 138/46
    # at least 1, 2, 3, 4 of exactly 0..4 = 6, 0, 6, 10, 24: 40, 40, 34, 24 of 46 steps
    assert figures.per_position == (exactly(40 / 46), exactly(40 / 46), exactly(34 / 46), exactly(24 / 46))
    assert figures.histogram == (6, 0, 6, 10, 24)
    assert (figures.drafts, figures.drafted, figures.accepted) == (46, 184, 138)
    # the identity of P14: mean length = 1 + the sum of the positions
    assert 1 + sum(figures.per_position) == exactly(4.0)


def test_p15_no_drafts_is_no_figure_and_never_zero_percent() -> None:
    found = record(num_spec_steps=0, num_draft_tokens=0, num_accepted_draft_tokens=0, acceptance_histogram=[0] * 5)
    assert found is not None
    figures = from_record(found, 200)
    assert (figures.rate, figures.mean_length, figures.per_position) == (None, None, None)
    assert (figures.drafts, figures.drafted, figures.accepted) == (0, 0, 0)


def test_drafts_that_were_all_rejected_are_zero_percent() -> None:
    found = record(
        num_spec_steps=3, num_draft_tokens=12, num_accepted_draft_tokens=0, acceptance_histogram=[3, 0, 0, 0, 0]
    )
    assert found is not None
    figures = from_record(found, 200)
    assert (figures.rate, figures.mean_length, figures.per_position) == (0.0, 1.0, (0.0, 0.0, 0.0, 0.0))


def test_an_uncertain_record_gives_no_figure() -> None:
    figures = from_record(SpecRecord(source="server", drafts=5, drafted=20, accepted=9, certain=False), 20)
    assert (figures.rate, figures.mean_length, figures.drafts, figures.drafted, figures.accepted) == (None,) * 5


# 3 steps of up to 4: 3 of 4, 4 of 4, 0 of 2
DETAILED: dict[str, Any] = {
    "acceptance_histogram": [1, 0, 0, 1, 1],
    "num_spec_steps": 3,
    "num_accepted_draft_tokens": 7,
    "num_draft_tokens": 10,
    "num_spec_tokens": 4,
    "per_step_accepted": [3, 4, 0],
    "per_step_drafted": [4, 4, 2],
}


def detailed(**changed: Any) -> SpecRecord:
    found = record_from_metrics({"speculative_decoding": DETAILED | changed})
    assert found is not None
    return found


def test_the_steps_of_a_detailed_record_are_kept() -> None:
    found = detailed()
    assert (found.per_step_accepted, found.per_step_drafted) == ((3, 4, 0), (4, 4, 2))
    assert found.num_spec_tokens == 4


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({"per_step_accepted": [3, 4]}, (None, None)),  # a step is missing
        ({"per_step_accepted": [3, 4, 1]}, (None, None)),  # 8, not 7
        ({"per_step_accepted": [3, 4, None]}, (None, None)),
        ({"per_step_drafted": [4, 4]}, ((3, 4, 0), None)),
        ({"per_step_drafted": [4, 4, 4]}, ((3, 4, 0), None)),  # 12, not 10
        ({"per_step_drafted": [2, 4, 4]}, ((3, 4, 0), None)),  # 3 accepted of 2
    ],
)
def test_steps_that_contradict_the_counts_are_not_believed(changed: dict[str, Any], kept: Any) -> None:
    found = detailed(**changed)
    assert (found.per_step_accepted, found.per_step_drafted) == kept
    assert from_record(found, 20).rate == 0.7


@pytest.mark.parametrize("histogram", [[1, 0, 0, 1, 2], [0, 1, 0, 1, 1], [1, 0, 0, 2]])
def test_a_histogram_that_contradicts_the_counts_is_not_believed(histogram: list[int]) -> None:
    assert detailed(acceptance_histogram=histogram).histogram is None


def test_the_positions_come_from_the_steps_where_there_is_no_histogram() -> None:
    figures = from_record(detailed(acceptance_histogram=None), 20)
    assert figures.histogram == (1, 0, 0, 1, 1)
    assert figures.per_position == (exactly(2 / 3), exactly(2 / 3), exactly(2 / 3), exactly(1 / 3))
    assert figures == from_record(detailed(), 20)


# --------------------------------------------------------------------------------- the rest of the formulas
def test_conditional_acceptance_is_a_share_of_those_that_got_that_far() -> None:
    figures = from_record(detailed(), 20)
    assert figures.conditional == (exactly(2 / 3), 1.0, 1.0, 0.5)
    assert conditional(None, 5) is None
    assert conditional((0, 0), 5) == (0.0, None)  # nothing got to the second position
    assert conditional((), 5) is conditional((1,), 0) is None


def test_conditional_acceptance_is_exact_to_the_last_digit() -> None:
    # as a ratio of ratios, 3/4 came out as 0.7499999999999999 and 1/3 as 0.33333333333333337
    assert conditional((40, 30, 10), 50) == (0.8, 0.75, 1 / 3)


def test_effective_tokens_per_pass_counts_the_steps_without_a_draft_too() -> None:
    found = record()  # 138 accepted in 46 steps
    assert found is not None
    figures = from_record(found, 200)
    assert figures.effective_tokens_per_pass == exactly(199 / 61)  # 3.26, where the mean length is 4.00
    assert figures.share_of_output == 0.69  # 138 / 200


def test_tokens_per_pass_is_the_formula_also_where_the_last_step_was_cut() -> None:
    # vllm 0.32.0, tests/fixtures/sse/code_solo_speculative: 160 tokens, 125 accepted in 35 steps, the last one cut
    assert effective_tokens_per_pass(160, 125) == exactly(159 / 34)


@pytest.mark.parametrize("n", [None, 0, 1, 8, 7, 2])
def test_where_nothing_is_left_after_the_accepted_tokens_there_is_no_figure(n: int | None) -> None:
    assert effective_tokens_per_pass(n, 7) is None


@pytest.mark.parametrize(("n", "share"), [(None, None), (0, None), (7, None), (8, 7 / 8), (20, 7 / 20)])
def test_the_share_of_the_output_is_never_more_than_all_but_the_first_token(n: int | None, share: float | None) -> None:
    assert share_of_output(n, 7) == share


def test_no_token_accepted_is_one_token_a_pass() -> None:
    rejected = detailed(acceptance_histogram=[3, 0, 0, 0, 0], num_accepted_draft_tokens=0, per_step_accepted=[0, 0, 0])
    figures = from_record(rejected, 20)
    assert (figures.effective_tokens_per_pass, figures.share_of_output, figures.alpha) == (1.0, 0.0, 0.0)
    assert figures.conditional == (0.0, None, None, None)


def test_alpha_counts_one_rejection_a_step() -> None:
    # 3 of 4 and 0 of 2 were turned down, 4 of 4 was not: 7 / (7 + 2)
    assert from_record(detailed(), 20).alpha == exactly(7 / 9)


def test_alpha_from_the_histogram_needs_drafts_of_full_length() -> None:
    found = record()
    assert found is not None
    assert from_record(found, 200).alpha == exactly(138 / (138 + 22))  # 184 = 46 x 4; 24 of 46 steps took all four
    shorter = record(num_draft_tokens=183)
    assert shorter is not None
    assert from_record(shorter, 200).alpha is None
    # the list ends where no step got further: that it drafted 4 each time is known from k
    short = record_from_meta_info(
        {
            "spec_verify_ct": 3,
            "spec_num_correct_drafts": 3,
            "spec_num_proposed_drafts": 12,
            "spec_correct_drafts_histogram": [1, 1, 1],
        }
    )
    assert short is not None
    assert from_record(short, 20).alpha is None
    assert from_record(structs.replace(short, num_spec_tokens=4), 20).alpha == 0.5  # 3 / (3 + 3)


def test_all_accepted_is_alpha_one() -> None:
    found = SpecRecord(source="request", drafts=2, drafted=4, accepted=4, histogram=(0, 0, 2))
    assert from_record(found, 8).alpha == 1.0


def test_without_steps_there_is_a_rate_and_what_needs_tokens() -> None:
    figures = from_record(SpecRecord(source="request", drafts=None, drafted=48, accepted=31), 50)
    assert (figures.rate, figures.drafted, figures.accepted) == (exactly(31 / 48), 48, 31)
    assert (figures.drafts, figures.mean_length, figures.per_position, figures.histogram, figures.alpha) == (None,) * 5
    assert figures.effective_tokens_per_pass == exactly(49 / 18)
    assert figures.share_of_output == 0.62


def test_a_count_of_ours_is_never_made_from_the_tokens_of_others() -> None:
    mixed = SpecRecord(source="server", drafts=100, drafted=400, accepted=200, exclusive=False)
    figures = from_record(mixed, 300)
    assert (figures.rate, figures.mean_length) == (0.5, 3.0)
    assert (figures.effective_tokens_per_pass, figures.share_of_output) == (None, None)


def test_no_list_is_made_of_a_length_that_no_draft_has() -> None:
    huge = SpecRecord(
        source="request",
        drafts=1,
        drafted=10**12,
        accepted=10**12,
        per_step_accepted=(10**12,),
        per_step_drafted=(10**12,),
    )
    assert from_record(huge, 20).histogram is None


# --------------------------------------------------------------------- whatever a server may say
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), max_size=30),
    st.integers(0, 60),
    st.booleans(),
)
def test_figures_of_any_record_are_in_range_and_agree(steps: list[tuple[int, int]], plain: int, lists: bool) -> None:
    pairs = [(min(a, d), d) for a, d in steps]
    accepted, drafted = [a for a, _ in pairs], [d for _, d in pairs]
    k = 8
    found = record_from_metrics(
        {
            "speculative_decoding": {
                "num_spec_steps": len(pairs),
                "num_draft_tokens": sum(drafted),
                "num_accepted_draft_tokens": sum(accepted),
                "num_spec_tokens": k,
                "acceptance_histogram": [accepted.count(j) for j in range(k + 1)],
            }
            | ({"per_step_accepted": accepted, "per_step_drafted": drafted} if lists else {})
        }
    )
    assert found is not None
    n = 1 + plain + len(pairs) + sum(accepted)  # the prefill's token, steps without a draft, steps with one
    figures = from_record(found, n)
    if not pairs:
        assert figures == Acceptance(
            source="request", rate=None, mean_length=None, drafts=0, drafted=0, accepted=0, histogram=(0,) * 9
        )
        return
    assert figures.rate is not None
    assert 0 <= figures.rate <= 1
    assert figures.effective_tokens_per_pass == exactly((n - 1) / (plain + len(pairs)))
    assert figures.per_position is not None
    assert figures.mean_length == pytest.approx(1 + sum(figures.per_position))
    assert figures.alpha is None or 0 <= figures.alpha <= 1
    assert (figures.alpha is None) <= (not lists)
    assert figures.share_of_output == sum(accepted) / n


@pytest.mark.parametrize(
    "metrics",
    [
        None,
        {},
        [],
        "x",
        {"speculative_decoding": None},
        {"speculative_decoding": {}},
        {"speculative_decoding": [1]},
        {"speculative_decoding": REAL | {"num_draft_tokens": None}},
        {"speculative_decoding": REAL | {"num_draft_tokens": "184"}},
        {"speculative_decoding": REAL | {"num_draft_tokens": True}},
        {"speculative_decoding": REAL | {"num_draft_tokens": -1}},
        {"speculative_decoding": REAL | {"num_draft_tokens": 1.5}},
        {"speculative_decoding": REAL | {"num_draft_tokens": float("nan")}},
    ],
)
def test_what_is_no_record_is_absent_and_not_repaired(metrics: object) -> None:
    assert record_from_metrics(metrics) is None


@pytest.mark.parametrize("histogram", [None, "x", [1, None], [1, -2], 7])
def test_a_bad_histogram_costs_only_the_positions(histogram: object) -> None:
    found = record(acceptance_histogram=histogram)
    assert found is not None
    figures = from_record(found, 200)
    assert (figures.rate, figures.histogram, figures.per_position) == (0.75, None, None)


def test_an_impossible_record_is_not_shown_as_more_than_all_accepted() -> None:
    found = record(num_accepted_draft_tokens=200)  # of 184
    assert found is None or (from_record(found, 200).rate or 0) <= 1


@pytest.mark.parametrize(("part", "whole"), [(None, 1), (1, None), (1, 0), (0, 0), (1, -1), (None, None)])
def test_no_ratio_where_there_is_nothing_to_divide_by(part: float | None, whole: float | None) -> None:
    assert ratio(part, whole) is None


# ------------------------------------------------------------------------------------------------- stream
def test_the_estimate_from_chunk_sizes() -> None:
    # k = 4, chunks of 1 | 5, 6, 1: the first token is the prefill's own. 5 tokens are 1 step (4 accepted), 6 are at
    # least 2 steps (4 accepted), 1 is a step that accepted nothing: 4 steps, 8 accepted
    estimate = StreamEstimate(k=4)
    for size in (1, 5, 6, 1):
        estimate.add(size)
    assert (estimate.steps, estimate.accepted) == (4, 8)
    figures = estimate.reading()
    assert figures is not None
    assert figures.source == "stream"
    assert figures.rate == 0.5  # 8 of 4 * 4
    assert figures.mean_length == 3.0  # 1 + 8/4
    assert figures.accepted == 8
    assert (figures.drafts, figures.drafted, figures.alpha) == (None, None, None)
    # the merged chunk of 6 is read as a full step and one of a single token
    assert figures.histogram == (2, 0, 0, 0, 2)
    assert figures.per_position == (0.5, 0.5, 0.5, 0.5)
    assert figures.conditional == (0.5, 1.0, 1.0, 1.0)
    assert figures.effective_tokens_per_pass == 3.0  # 12 tokens after the first, in 4 passes
    assert figures.share_of_output == exactly(8 / 13)


def test_a_first_chunk_with_more_than_the_first_token() -> None:
    estimate = StreamEstimate(k=3)
    estimate.add(4)  # 1 of the prefill, and a step of 3: 2 accepted
    assert (estimate.steps, estimate.accepted) == (1, 2)


def test_without_k_there_is_a_length_but_no_rate() -> None:
    estimate = StreamEstimate(k=None)
    for size in (1, 3, 2):  # 2 steps, 2 + 1 accepted
        estimate.add(size)
    figures = estimate.reading()
    assert figures is not None
    assert (figures.rate, figures.mean_length, figures.histogram) == (None, 2.5, (0, 1, 1))


def test_a_chunk_of_any_size_is_counted_at_once() -> None:
    for k in (None, 4):
        estimate = StreamEstimate(k=k)
        estimate.add(2**53)
        figures = estimate.reading()
        assert figures is not None
        assert figures.histogram is None or len(figures.histogram) == 5


def test_chunks_of_one_token_prove_no_draft() -> None:
    estimate = StreamEstimate(k=4)
    for size in (1, 1, 0, 1, 1):
        estimate.add(size)
    assert estimate.reading() is None


@given(st.lists(st.integers(0, 40)), st.one_of(st.none(), st.integers(1, 16)))
def test_an_estimate_is_never_out_of_range(sizes: list[int], k: int | None) -> None:
    estimate = StreamEstimate(k=k)
    for size in sizes:
        estimate.add(size)
    figures = estimate.reading()
    if figures is not None:
        assert figures.rate is None or 0 < figures.rate <= 1
        assert figures.mean_length is not None
        assert 1 < figures.mean_length <= (41 if k is None else k + 1)
