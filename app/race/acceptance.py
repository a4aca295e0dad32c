"""Acceptance of draft tokens, from the three sources of metrics.md. Pure.

With D draft tokens proposed, A accepted, S speculative steps that proposed at least one token, and N completion tokens:

    acceptance rate          A / D
    mean acceptance length   1 + A / S                (the target's own token included)
    per-position p_i         steps that accepted at least i tokens / S
    conditional c_i          p_i / p_(i-1), p_0 = 1
    histogram h_j            steps that accepted exactly j tokens
    effective tokens/pass    (N - 1) / (N - 1 - A)    (every pass after the prefill, with a draft or without)
    share of output          A / N
    per-token alpha          A / (A + steps in which a draft token was tested and rejected)

Nothing drafted gives None, never 0 % and never NaN. What needs N is None when other traffic is in the counts.

Servers count A before the answer is cut at its length limit, so up to k accepted tokens of the last step may never
have been sent; tokens per pass is then a little high. When nothing is left (A >= N - 1) there is no such figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from app.race.types import Acceptance, SpecRecord

MOST_POSITIONS = 128
"""Longer drafts exist nowhere: a count that says so is not believed, and no list of its length is made."""


def ratio(part: float | None, whole: float | None) -> float | None:
    """``part / whole``, or None where there is nothing to divide by."""
    if part is None or whole is None or whole <= 0:
        return None
    return part / whole


def from_record(record: SpecRecord, completion_tokens: int | None) -> Acceptance:
    """The figures of one record of facts (per request, or counter growth).

    ``completion_tokens`` is N as the server counted it, None where it is an estimate or unknown.
    """
    if not record.certain:
        return Acceptance(
            source=record.source,
            rate=None,
            mean_length=None,
            drafts=None,
            drafted=None,
            accepted=None,
            exclusive=record.exclusive,
            doubt=record.doubt,
        )
    steps, accepted = record.drafts, record.accepted
    length = ratio(accepted, steps)
    histogram = _histogram(record)
    counts = _at_least(record, histogram)
    n = completion_tokens if record.exclusive and record.drafted else None
    return Acceptance(
        source=record.source,
        rate=ratio(accepted, record.drafted),
        mean_length=None if length is None else 1 + length,
        drafts=steps,
        drafted=record.drafted,
        accepted=accepted,
        per_position=_per_position(counts, steps),
        histogram=histogram,
        exclusive=record.exclusive,
        conditional=conditional(counts, steps),
        effective_tokens_per_pass=effective_tokens_per_pass(n, accepted),
        share_of_output=share_of_output(n, accepted),
        alpha=_alpha(record),
    )


def effective_tokens_per_pass(n: int | None, accepted: int) -> float | None:
    """(N - 1) / (N - 1 - A): tokens of the decode for every pass of the target, passes without a draft among them."""
    return None if n is None or accepted >= n - 1 else ratio(n - 1, n - 1 - accepted)


def share_of_output(n: int | None, accepted: int) -> float | None:
    """A / N; None when A > N - 1, since the first token comes from the prefill."""
    return None if n is None or accepted > n - 1 else ratio(accepted, n)


def conditional(counts: Sequence[int] | None, steps: int | None) -> tuple[float | None, ...] | None:
    """c_i = p_i / p_(i-1): how often a position was accepted when the one before it was; None where none was.
    ``counts[i]`` steps of ``steps`` accepted more than ``i`` tokens."""
    if not counts or not steps:
        return None
    return tuple(ratio(n, before) for n, before in zip(counts, (steps, *counts), strict=False))


def at_least(histogram: Sequence[int]) -> tuple[int, ...]:
    """Steps that accepted at least 1, 2, ... tokens, from steps that accepted exactly 0, 1, 2, ..."""
    tail = list(accumulate(reversed(histogram)))
    return tuple(reversed(tail[:-1]))


def _histogram(record: SpecRecord) -> tuple[int, ...] | None:
    """Steps that accepted exactly 0..k: as sent, else from the single steps, else from the positions."""
    if record.histogram:
        return record.histogram
    if record.per_step_accepted:
        k = max(record.per_step_drafted or record.per_step_accepted)
        return tuple(record.per_step_accepted.count(j) for j in range(k + 1)) if k <= MOST_POSITIONS else None
    if record.accepted_at_least and record.drafts:
        ladder = (record.drafts, *record.accepted_at_least, 0)
        exact = tuple(more - fewer for more, fewer in pairwise(ladder))
        return exact if min(exact) >= 0 else None
    return None


def _at_least(record: SpecRecord, histogram: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return record.accepted_at_least or (at_least(histogram) if histogram else None)


def _per_position(counts: tuple[int, ...] | None, steps: int | None) -> tuple[float, ...] | None:
    """Of all speculative steps, as vLLM does it: a step with a shorter draft counts as one that did not get there."""
    return tuple(n / steps for n in counts) if counts and steps else None


def _alpha(record: SpecRecord) -> float | None:
    """A / (A + rejections). Only the first rejected token of a step was tested and turned down; what follows it was not
    looked at. Steps that accepted all they drafted rejected nothing, and that shows in the single steps, or in the
    histogram when every step drafted k tokens (D = S k); otherwise it cannot be known."""
    if not record.drafts:
        return None
    if record.per_step_accepted and record.per_step_drafted:
        pairs = zip(record.per_step_accepted, record.per_step_drafted, strict=False)
        rejected = sum(1 for accepted, drafted in pairs if accepted < drafted)
    else:
        counts = _at_least(record, record.histogram)
        k = record.num_spec_tokens or (len(counts) if counts else 0)
        if not counts or record.drafted != record.drafts * k:
            return None
        rejected = record.drafts - (counts[k - 1] if k <= len(counts) else 0)
    return ratio(record.accepted, record.accepted + rejected)


# --- source "stream" --------------------------------------------------------------------------------


class StreamEstimate:
    """Live estimate from chunk sizes: one engine step emits 1..k+1 tokens, so m tokens need at least
    ceil(m / (k+1)) steps and the rest of them were accepted drafts.

    The server may merge steps into one chunk (then too much counts as accepted), and a step of one token
    may have had no draft at all (then the rate is too low: n-gram and suffix skip steps). Hence: estimate.
    """

    def __init__(self, k: int | None) -> None:
        self.k = k
        self.steps = self.accepted = self.tokens = 0
        self._exactly: dict[int, int] = {}

    def add(self, tokens: int) -> None:
        """Count one chunk of ``tokens`` tokens; the very first token comes from the prefill."""
        if tokens <= 0:
            return
        after_prefill = tokens if self.tokens else tokens - 1
        self.tokens += tokens
        # a merged chunk is read as full steps and one with the rest: the fewest that can have made it
        most = after_prefill if self.k is None else self.k + 1
        full, rest = divmod(after_prefill, most) if after_prefill else (0, 0)
        for steps, size in ((full, most), (1 if rest else 0, rest)):
            if steps:
                self.steps += steps
                self.accepted += steps * (size - 1)
                self._exactly[size - 1] = self._exactly.get(size - 1, 0) + steps

    def reading(self) -> Acceptance | None:
        """The estimate, None while no chunk proved a draft. The rate assumes k draft tokens a step."""
        if self.accepted == 0:
            return None
        longest = max(self._exactly) if self.k is None else self.k
        believed = longest <= MOST_POSITIONS
        histogram = tuple(self._exactly.get(j, 0) for j in range(longest + 1)) if believed else None
        counts = at_least(histogram) if histogram else None
        return Acceptance(
            source="stream",
            rate=None if self.k is None else ratio(self.accepted, self.k * self.steps),
            mean_length=1 + self.accepted / self.steps,
            drafts=None,
            drafted=None,
            accepted=self.accepted,
            per_position=_per_position(counts, self.steps),
            histogram=histogram,
            conditional=conditional(counts, self.steps),
            effective_tokens_per_pass=effective_tokens_per_pass(self.tokens, self.accepted),
            share_of_output=share_of_output(self.tokens, self.accepted),
        )
