"""Acceptance source "server": what vLLM's counters grew by over a race, and whether that can be believed. Pure.

Every series is subtracted on its own, each ``engine`` label apart, and only then summed (P14). Counters can lie in many
ways; growth that cannot be known is a doubt, never a number:

    reset          a series went down, and no newer ``_created`` proves where it began again
    unreadable     a value that is no count: NaN, infinite, negative, or two different values of one series; or a page
                   that is none, or does not come
    incomplete     a series of the family is gone, was never there, or was there before without having been seen
    contradictory  more accepted than drafted: the numbers of one page belong to different moments
    late           the counters did not catch up with the answer in time (P17)

Positions are read apart: labels that are no 0..k-1, or that do not add up to the accepted tokens, cost only themselves.
"""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

from app.race.counters import ACCEPTED, DRAFTED, DRAFTS, GENERATED, PER_POSITION, Counters, SeriesKey, position
from app.race.types import CounterDoubt, SpecRecord

_FIRST: tuple[CounterDoubt, ...] = ("reset", "unreadable", "incomplete", "contradictory")
"""Which doubt is named when there are several."""
MOST = 2.0**53
"""A float cannot count beyond; NaN compares as false with it."""


class Growth(Struct, frozen=True):
    """What the counters grew by. ``drafts`` and ``generated`` are None when the server has no such counter;
    ``accepted_at_least`` is empty when the positions cannot be read; ``reset`` says that a series restarted."""

    drafts: int | None
    drafted: int
    accepted: int
    accepted_at_least: tuple[int, ...]
    generated: int | None
    reset: bool = False
    doubt: CounterDoubt | None = None

    @property
    def certain(self) -> bool:
        """Whether the growth can be known."""
        return self.doubt is None


def growth(before: Counters, after: Counters) -> Growth | None:
    """Growth from ``before`` to ``after``, None where the server has no speculation counters."""
    if not after.speculating or not before.speculating:
        return None
    sums: dict[str, float] = {}
    doubts: set[CounterDoubt] = set() if _complete(before, after) else {"incomplete"}
    reset = False
    for key, value in after.values.items():
        if key[0] == PER_POSITION:
            continue
        delta, again, doubt = _series(key, value, before, after)
        reset = reset or again
        if doubt is not None:
            doubts.add(doubt)
        sums[key[0]] = sums.get(key[0], 0.0) + delta
    counted = DRAFTS in sums and _labels(after, DRAFTS) == _labels(after, DRAFTED)
    drafts = round(sums[DRAFTS]) if counted else None
    drafted, accepted = round(sums.get(DRAFTED, 0.0)), round(sums.get(ACCEPTED, 0.0))
    if accepted > drafted or (drafts is not None and (drafts > drafted or (drafts == 0 and drafted > 0))):
        doubts.add("contradictory")
    return Growth(
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        accepted_at_least=_positions(before, after, accepted, drafts) if not doubts else (),
        generated=round(sums[GENERATED]) if GENERATED in sums else None,
        reset=reset,
        doubt=next((doubt for doubt in _FIRST if doubt in doubts), None),
    )


def _series(key: SeriesKey, value: float, before: Counters, after: Counters) -> tuple[float, bool, CounterDoubt | None]:
    """Growth of one series, whether it restarted, and what is wrong with it. A series with a newer ``_created`` was
    reset for certain, and its new value is its growth; so it is with one that has come since."""
    was = before.values.get(key)
    if not 0 <= value < MOST or (was is not None and not 0 <= was < MOST):
        return 0.0, False, "unreadable"
    since, then = after.created.get(key), before.created.get(key)
    if was is None:
        came_later = since is None or since > max(before.created.values(), default=0.0)
        return value, False, None if came_later else "incomplete"
    if since is not None and then is not None and since > then:
        return value, True, None
    return (value - was, False, None) if value >= was else (0.0, True, "reset")


def _complete(before: Counters, after: Counters) -> bool:
    """Whether nothing is missing that a rate is made of: every engine has both counts, and none has left."""
    drafted = _labels(after, DRAFTED)
    stayed = all(key in after.values for key in before.values if key[0] != PER_POSITION)
    return bool(drafted) and drafted == _labels(after, ACCEPTED) and stayed


def _labels(counters: Counters, name: str) -> set[tuple[tuple[str, str], ...]]:
    """The label sets of a counter."""
    return {labels for found, labels in counters.values if found == name}


def _positions(before: Counters, after: Counters, accepted: int, drafts: int | None) -> tuple[int, ...]:
    """Growth per draft position, empty when it cannot be read: every accepted token has a position, and a step that
    reached one has reached all before it."""
    at: dict[int | None, float] = {}
    for key in before.values.keys() | after.values.keys():
        if key[0] == PER_POSITION:
            delta, _, doubt = _series(key, after.values.get(key, -1.0), before, after)
            index = position(key) if doubt is None else None
            at[index] = at.get(index, 0.0) + delta
    found = [round(at[i]) for i in range(len(at)) if i in at]
    steady = all(fewer <= more for more, fewer in pairwise(found))
    if len(found) != len(at) or sum(found) != accepted or not steady:
        return ()
    return () if drafts is not None and found and found[0] > drafts else tuple(found)


def foreign(seen: Growth, completion_tokens: int | None, k: int | None) -> bool:
    """Whether the counters hold more than a lane of ``completion_tokens`` tokens can have caused: the server generated
    other tokens meanwhile, or 1 + drafts + accepted exceeds the lane's tokens by more than k. (It may well be less:
    steps without a draft are in no counter.)"""
    if completion_tokens is None:
        return False
    most = completion_tokens + _last_step(seen, k)
    return 1 + (seen.drafts or 0) + seen.accepted > most or (seen.generated is not None and seen.generated > most)


def _last_step(seen: Growth, k: int | None) -> int:
    """How many tokens the last step may have counted beyond the end of the answer: k."""
    return k or max(len(seen.accepted_at_least), 1)


def settled(seen: Growth, previous: Growth | None, completion_tokens: int | None, k: int | None = None) -> bool:
    """Whether waiting longer is no use: the counters have caught up with a lane of ``completion_tokens`` tokens that
    has ended, or hold other traffic anyway (on a busy server they never stand still), or have restarted, or are no
    numbers.

    They may lag the stream by up to about two seconds (P17). The token counter tells for certain; without it, two
    equal readings have to do that account for all of the lane's tokens, up to k. Steps without a draft are in no
    counter: a lane that had some is waited for in full (``final``). One token is no step: no draft can be in it.
    """
    if seen.doubt is not None:
        return seen.doubt in ("reset", "unreadable")
    if foreign(seen, completion_tokens, k):
        return True
    if seen.generated is not None and completion_tokens is not None:
        return seen.generated >= completion_tokens and seen == previous
    if completion_tokens is None:
        return False
    if completion_tokens <= 1 and seen.drafted == 0:
        return True
    accounted = 1 + (seen.drafts or 0) + seen.accepted >= completion_tokens - _last_step(seen, k)
    return seen.drafted > 0 and accounted and seen == previous


def final(seen: Growth, completion_tokens: int | None, k: int | None) -> SpecRecord:
    """The record of counters that have not settled when the time is up. Without the token counter they are taken as
    they stand, if they moved at all: fewer steps than tokens is normal where steps run without a draft."""
    counted = seen.generated is not None and completion_tokens is not None
    if seen.doubt is None and (counted or seen.drafted == 0):
        return unknown("late")
    return record(seen, completion_tokens, k)


def record(seen: Growth, completion_tokens: int | None, k: int | None) -> SpecRecord:
    """The growth as this lane's record; not ``exclusive`` when other traffic is in it, not ``certain`` when it cannot
    be known."""
    if seen.doubt is not None:
        return unknown(seen.doubt, reset=seen.reset)
    return SpecRecord(
        source="server",
        drafts=seen.drafts,
        drafted=seen.drafted,
        accepted=seen.accepted,
        accepted_at_least=seen.accepted_at_least or None,
        num_spec_tokens=k,
        exclusive=not foreign(seen, completion_tokens, k),
        reset=seen.reset,
    )


def unknown(doubt: CounterDoubt, *, reset: bool = False) -> SpecRecord:
    """The record of counters that say nothing, and why."""
    return SpecRecord(
        source="server", drafts=None, drafted=0, accepted=0, reset=reset or doubt == "reset", certain=False, doubt=doubt
    )
