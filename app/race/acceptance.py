"""Acceptance of draft tokens, from the three sources of metrics.md. Pure.

With D draft tokens proposed, A accepted and S speculative steps that proposed at least one token:

    acceptance rate          A / D
    mean acceptance length   1 + A / S      (the target's own token included)
    per-position p_i         steps that accepted at least i tokens / S

Nothing drafted gives None, never 0 % and never NaN.
"""

from __future__ import annotations

from msgspec import Struct

from app.race.types import Acceptance, AcceptanceSource, SpecRecord


def ratio(part: float | None, whole: float | None) -> float | None:
    """``part / whole``, or None where there is nothing to divide by."""
    if part is None or whole is None or whole <= 0:
        return None
    return part / whole


def from_record(record: SpecRecord) -> Acceptance:
    """The figures of one record of facts (per request, or counter growth)."""
    if not record.certain:
        return Acceptance(source=record.source, rate=None, mean_length=None, drafts=None, drafted=None, accepted=None)
    steps = record.drafts
    length = ratio(record.accepted, steps)
    at_least = record.accepted_at_least
    return Acceptance(
        source=record.source,
        rate=ratio(record.accepted, record.drafted),
        mean_length=None if length is None else 1 + length,
        drafts=record.drafts,
        drafted=record.drafted,
        accepted=record.accepted,
        per_position=tuple(n / steps for n in at_least) if at_least and steps > 0 else None,
        histogram=record.histogram,
        exclusive=record.exclusive,
    )


# --- source "stream" --------------------------------------------------------------------------------


class StreamEstimate(Struct):
    """Live estimate from chunk sizes: one engine step emits 1..k+1 tokens, so m tokens need at least
    ceil(m / (k+1)) steps and the rest of them were accepted drafts.

    The server may merge steps into one chunk (then too much counts as accepted), and a step of one token
    may have had no draft at all (then the rate is too low: n-gram and suffix skip steps). Hence: estimate.
    """

    k: int | None
    steps: int = 0
    accepted: int = 0
    seen_first: bool = False

    def add(self, tokens: int) -> None:
        """Count one chunk of ``tokens`` tokens; the very first token comes from the prefill."""
        if tokens > 0 and not self.seen_first:
            self.seen_first = True
            tokens -= 1
        if tokens <= 0:
            return
        steps = 1 if self.k is None else -(-tokens // (self.k + 1))
        self.steps += steps
        self.accepted += tokens - steps

    def reading(self) -> Acceptance | None:
        """The estimate, None while no chunk proved a draft. The rate assumes k draft tokens a step."""
        if self.accepted == 0:
            return None
        source: AcceptanceSource = "stream"
        return Acceptance(
            source=source,
            rate=None if self.k is None else ratio(self.accepted, self.k * self.steps),
            mean_length=1 + self.accepted / self.steps,
            drafts=None,
            drafted=None,
            accepted=self.accepted,
        )
