"""Acceptance source "request": what a server says about drafts in the stream itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import cast

from app.race.types import SpecRecord


def record_from_metrics(metrics: object) -> SpecRecord | None:
    """The record in ``metrics.speculative_decoding`` of vLLM's final usage chunk, None if there is none.

    ``acceptance_histogram[j]`` counts steps that accepted exactly j; steps without a draft are left out by
    the server. Anything that is not what vLLM 0.28+ sends is treated as absent, never repaired.
    """
    if not isinstance(metrics, Mapping):
        return None
    spec = cast("Mapping[str, object]", metrics).get("speculative_decoding")
    if not isinstance(spec, Mapping):
        return None
    fields = cast("Mapping[str, object]", spec)
    drafts = _count(fields.get("num_spec_steps"))
    drafted = _count(fields.get("num_draft_tokens"))
    accepted = _count(fields.get("num_accepted_draft_tokens"))
    if drafts is None or drafted is None or accepted is None or accepted > drafted:
        return None
    histogram = _counts(fields.get("acceptance_histogram"))
    return SpecRecord(
        source="request",
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        histogram=histogram,
        accepted_at_least=_at_least(histogram) if histogram else None,
        per_step_accepted=_counts(fields.get("per_step_accepted")),
        per_step_drafted=_counts(fields.get("per_step_drafted")),
    )


def _at_least(histogram: Sequence[int]) -> tuple[int, ...]:
    """Steps that accepted at least 1, 2, ... tokens, from steps that accepted exactly 0, 1, 2, ..."""
    tail = list(accumulate(reversed(histogram)))
    return tuple(reversed(tail[:-1]))


def _count(value: object) -> int | None:
    """A non-negative whole number, or None (booleans and NaN are no counts)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if value >= 0 and value == int(value) else None


def _counts(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        return None
    counts = [_count(item) for item in cast("Sequence[object]", value)]
    return None if None in counts else tuple(n for n in counts if n is not None)
