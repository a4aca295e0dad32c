"""Acceptance source "server": growth of vLLM's Prometheus counters over a race. Pure.

Names are matched whole, with and without ``_total``, and never by prefix: ``..._created`` is a timestamp
(P11, P12). Every series is subtracted on its own, each ``engine`` label apart, and only then summed (P14).
"""

from __future__ import annotations

from math import isfinite

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from app.race.types import SpecRecord

DRAFTS = "vllm:spec_decode_num_drafts"
DRAFTED = "vllm:spec_decode_num_draft_tokens"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
GENERATED = "vllm:generation_tokens"
_NAMES = (DRAFTS, DRAFTED, ACCEPTED, PER_POSITION, GENERATED)
_VALUE_OF = {name: name for name in _NAMES} | {f"{name}_total": name for name in _NAMES}
_CREATED_OF = {f"{name}_created": name for name in _NAMES}

SeriesKey = tuple[str, tuple[tuple[str, str], ...]]


class Counters(Struct, frozen=True):
    """One reading of /metrics: value and, where exposed, creation time (Unix seconds) per series."""

    values: dict[SeriesKey, float]
    created: dict[SeriesKey, float]

    @property
    def speculating(self) -> bool:
        """vLLM exposes the spec_decode families from boot if and only if it speculates."""
        return any(key[0] in (DRAFTS, DRAFTED, ACCEPTED) for key in self.values)

    @property
    def num_speculative_tokens(self) -> int | None:
        """k is the number of ``position`` series of one engine."""
        positions = {
            value for key in self.values if key[0] == PER_POSITION for name, value in key[1] if name == "position"
        }
        return len(positions) or None


def parse(text: str) -> Counters:
    """Read the Prometheus text format.

    Raises:
        ValueError: the text is not that format (an HTML page, a truncated body).
    """
    values: dict[SeriesKey, float] = {}
    created: dict[SeriesKey, float] = {}
    try:
        families = list(text_string_to_metric_families(text))
    except (IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # the parser's own way of saying that a line is broken
        raise ValueError(f"not the Prometheus format ({type(error).__name__})") from None
    if not families and text.strip():
        raise ValueError("no metric family in the answer")
    for family in families:
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            if sample.name in _VALUE_OF:
                values[(_VALUE_OF[sample.name], labels)] = float(sample.value)
            elif sample.name in _CREATED_OF:
                created[(_CREATED_OF[sample.name], labels)] = float(sample.value)
    return Counters(values, created)


class Growth(Struct, frozen=True):
    """What the counters grew by. ``generated`` is None when the server has no such counter; ``reset`` says
    that a series restarted; ``certain`` is False when the growth of a reset series cannot be known."""

    drafts: int
    drafted: int
    accepted: int
    accepted_at_least: tuple[int, ...]
    generated: int | None
    reset: bool
    certain: bool


def growth(before: Counters, after: Counters) -> Growth | None:
    """Growth from ``before`` to ``after``, None where the server has no speculation counters.

    A series with a newer ``_created`` was reset for certain and its new value is its growth. A series that
    went down without that proof, that is gone, or that is no number, makes the growth uncertain.
    """
    if not after.speculating or not before.speculating:
        return None
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    reset, certain = False, all(key in after.values for key in before.values)
    for key, value in after.values.items():
        was = before.values.get(key, 0.0)
        if not (isfinite(value) and isfinite(was)):
            certain = False
            continue
        delta = value - was
        if after.created.get(key, 0.0) > before.created.get(key, 0.0) and key in before.created:
            reset, delta = True, value
        elif delta < 0:
            reset, certain, delta = True, False, value
        sums[key[0]] = sums.get(key[0], 0.0) + delta
        if key[0] == PER_POSITION:
            index = _position(key)
            if index is not None:
                positions[index] = positions.get(index, 0.0) + delta
    return Growth(
        drafts=round(sums.get(DRAFTS, 0.0)),
        drafted=round(sums.get(DRAFTED, 0.0)),
        accepted=round(sums.get(ACCEPTED, 0.0)),
        accepted_at_least=tuple(round(positions[i]) for i in sorted(positions)),
        generated=round(sums[GENERATED]) if GENERATED in sums else None,
        reset=reset or not certain,
        # more accepted than drafted: the counters of one scrape belong to different moments
        certain=certain and sums.get(ACCEPTED, 0.0) <= sums.get(DRAFTED, 0.0),
    )


def _position(key: SeriesKey) -> int | None:
    value = dict(key[1]).get("position", "")
    return int(value) if value.isdecimal() else None


def settled(seen: Growth, previous: Growth | None, completion_tokens: int | None) -> bool:
    """Whether the counters have caught up with a lane of ``completion_tokens`` tokens that has ended.

    They may lag the stream by up to about two seconds (P17). The token counter tells for certain; without it,
    two equal readings after some movement have to do.
    """
    if seen.generated is not None and completion_tokens is not None:
        return seen.generated >= completion_tokens and seen == previous
    return seen.drafted > 0 and seen == previous


def record(seen: Growth, completion_tokens: int | None, k: int | None) -> SpecRecord:
    """The growth as this lane's record; not ``certain`` when it cannot be known.

    ``exclusive`` is False when the counters hold more than this lane can have caused: the server generated
    other tokens meanwhile, or 1 + drafts + accepted exceeds the lane's tokens by more than k. (It may well be
    less: steps without a draft are in no counter.)
    """
    if not seen.certain:
        return SpecRecord(source="server", drafts=0, drafted=0, accepted=0, reset=True, certain=False)
    slack = k or max(len(seen.accepted_at_least), 1)
    exclusive = True
    if completion_tokens is not None:
        most = completion_tokens + slack
        exclusive = 1 + seen.drafts + seen.accepted <= most and (seen.generated is None or seen.generated <= most)
    return SpecRecord(
        source="server",
        drafts=seen.drafts,
        drafted=seen.drafted,
        accepted=seen.accepted,
        accepted_at_least=seen.accepted_at_least or None,
        exclusive=exclusive,
        reset=seen.reset,
    )
