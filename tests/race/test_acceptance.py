"""Acceptance from the server's own record, and the live estimate from chunk sizes; worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.race.acceptance import StreamEstimate, from_record, ratio
from app.race.records import record_from_metrics
from app.race.types import SpecRecord
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
    figures = from_record(found)
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
    figures = from_record(found)
    assert (figures.rate, figures.mean_length, figures.per_position) == (None, None, None)
    assert (figures.drafts, figures.drafted, figures.accepted) == (0, 0, 0)


def test_drafts_that_were_all_rejected_are_zero_percent() -> None:
    found = record(
        num_spec_steps=3, num_draft_tokens=12, num_accepted_draft_tokens=0, acceptance_histogram=[3, 0, 0, 0, 0]
    )
    assert found is not None
    figures = from_record(found)
    assert (figures.rate, figures.mean_length, figures.per_position) == (0.0, 1.0, (0.0, 0.0, 0.0, 0.0))


def test_an_uncertain_record_gives_no_figure() -> None:
    figures = from_record(SpecRecord(source="server", drafts=5, drafted=20, accepted=9, certain=False))
    assert (figures.rate, figures.mean_length, figures.drafts, figures.drafted, figures.accepted) == (None,) * 5


def test_the_steps_of_a_detailed_record_are_kept() -> None:
    found = record(per_step_accepted=[3, 4, 0], per_step_drafted=[4, 4, 4])
    assert found is not None
    assert (found.per_step_accepted, found.per_step_drafted) == ((3, 4, 0), (4, 4, 4))


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
    figures = from_record(found)
    assert (figures.rate, figures.histogram, figures.per_position) == (0.75, None, None)


def test_an_impossible_record_is_not_shown_as_more_than_all_accepted() -> None:
    found = record(num_accepted_draft_tokens=200)  # of 184
    assert found is None or (from_record(found).rate or 0) <= 1


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
    assert (figures.drafts, figures.drafted, figures.per_position) == (None, None, None)


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
    assert (figures.rate, figures.mean_length) == (None, 2.5)


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
