"""Acceptance source "request": what a server says about drafts in the stream itself. Pure.

Three servers say it in three ways, and all of them name the same counts:

    vLLM        ``metrics.speculative_decoding`` of the last chunk (--per-request-spec-decode-metrics)
    SGLang      ``sglext.spec_tokens_details`` of a chunk without choices, when the request asks for it with
                ``return_spec_tokens_details`` (sgl-project/sglang pull request 33518); the same names in a choice's
                ``meta_info``, which relays send along (SGLang itself refuses ``return_meta_info`` in a stream)
    llama.cpp   ``timings`` of the last chunk, only when something was drafted; it does not count steps

Anything that is not what these servers send is treated as absent, never repaired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from app.race.types import SpecRecord

Fields = Mapping[str, object]
MOST_POSITIONS = 128
"""Longer drafts exist nowhere; app/race/acceptance.py, further down the corridor, makes no longer list either."""

# SGLang renamed its counts twice; the first name is the newest
_SGLANG_STEPS = ("spec_verify_ct",)
_SGLANG_DRAFTED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
_SGLANG_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_SGLANG_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")


def record_in(
    metrics: object = None, sglext: object = None, timings: object = None, meta_info: object = None
) -> SpecRecord | None:
    """The record in one message of a stream, whichever server sent it, None if there is none."""
    if metrics is None and sglext is None and timings is None and meta_info is None:
        return None  # nearly every message
    return (
        record_from_metrics(metrics)
        or record_from_sglext(sglext)
        or record_from_meta_info(meta_info)
        or record_from_timings(timings)
    )


def record_from_metrics(metrics: object) -> SpecRecord | None:
    """vLLM 0.28 and newer. ``acceptance_histogram[j]`` counts steps that accepted exactly j; steps without a draft are
    left out by the server."""
    fields = _fields(_fields(metrics).get("speculative_decoding"))
    made = _record(
        drafts=_count(fields.get("num_spec_steps")),
        drafted=_count(fields.get("num_draft_tokens")),
        accepted=_count(fields.get("num_accepted_draft_tokens")),
        histogram=_counts(fields.get("acceptance_histogram")),
        k=_count(fields.get("num_spec_tokens")),
        steps=(_counts(fields.get("per_step_accepted")), _counts(fields.get("per_step_drafted"))),
    )
    return None if made is None or made.drafts is None else made


def record_from_sglext(sglext: object) -> SpecRecord | None:
    """SGLang's answer to ``return_spec_tokens_details``; a list of them when several answers were asked for."""
    details = _fields(sglext).get("spec_tokens_details")
    first = [*cast("list[object]", details), None][0] if isinstance(details, list) else details
    return record_from_meta_info(first)


def record_from_meta_info(meta_info: object) -> SpecRecord | None:
    """SGLang's own names. Its ``spec_accept_length`` is N / steps and not used here."""
    fields = _fields(meta_info)
    return _record(
        drafts=_count(_first(fields, _SGLANG_STEPS)),
        drafted=_count(_first(fields, _SGLANG_DRAFTED)),
        accepted=_count(_first(fields, _SGLANG_ACCEPTED)),
        histogram=_counts(_first(fields, _SGLANG_HISTOGRAM)),
    )


def record_from_timings(timings: object) -> SpecRecord | None:
    """llama.cpp's llama-server, and servers that took its ``timings`` over."""
    fields = _fields(timings)
    return _record(drafts=None, drafted=_count(fields.get("draft_n")), accepted=_count(fields.get("draft_n_accepted")))


def _record(
    *,
    drafts: int | None,
    drafted: int | None,
    accepted: int | None,
    histogram: tuple[int, ...] | None = None,
    k: int | None = None,
    steps: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = (None, None),
) -> SpecRecord | None:
    """The record, None where its three counts are missing or impossible. A list that contradicts them costs only what
    is read from it."""
    if drafted is None or accepted is None or accepted > drafted:
        return None
    if drafts is not None and (drafts > drafted or (drafts == 0 and drafted > 0)):
        drafts = None  # not the number of steps that had a draft, whatever else it counts
    k = k if k and k <= MOST_POSITIONS else None
    longest = k or MOST_POSITIONS
    if histogram and len(histogram) > longest + 1:
        histogram = None  # a step of more tokens than a draft has
    if histogram and (sum(histogram) != drafts or sum(j * n for j, n in enumerate(histogram)) != accepted):
        histogram = None
    per_accepted, per_drafted = steps
    if per_accepted is not None and (
        len(per_accepted) != drafts or sum(per_accepted) != accepted or max(per_accepted, default=0) > longest
    ):
        per_accepted = None
    if per_drafted is not None and (
        per_accepted is None
        or len(per_drafted) != len(per_accepted)
        or sum(per_drafted) != drafted
        or max(per_drafted, default=0) > longest
        or any(a > d for a, d in zip(per_accepted, per_drafted, strict=True))
    ):
        per_drafted = None
    return SpecRecord(
        source="request",
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        histogram=histogram,
        per_step_accepted=per_accepted,
        per_step_drafted=per_drafted,
        num_spec_tokens=k,
    )


def _fields(value: object) -> Fields:
    """The object ``value``, an empty one where it is none."""
    return cast("Fields", value) if isinstance(value, Mapping) else {}


def _first(fields: Fields, names: Sequence[str]) -> object:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _count(value: object) -> int | None:
    """A non-negative whole number, or None (booleans and NaN are no counts)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value < 2**53 and value == int(value) else None


def _counts(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        return None
    counts = [_count(item) for item in cast("Sequence[object]", value)]
    return None if None in counts else tuple(n for n in counts if n is not None)
