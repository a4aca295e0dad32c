"""Which tokens of a lane came from the draft. Pure.

The first token comes from the prefill. After it every engine step emits the drafts that the target accepted, and then
one token of the target's own:

    step with 3 accepted of 4 drafted:   draft  draft  draft  target
    step without a draft, or none taken: target
    last step, cut at the length limit:  draft  draft

A chunk holds whole steps: one, or several when the server's HTTP layer lagged. Three grades:

    exact        every step drafted (the record's steps account for every token and end where chunks end), or the
                 record's steps fit the chunks one to one, with steps without a draft between them
    approximate  the record says how many drafts each step accepted, but steps share chunks, so where they stand is
                 not certain: the reading with the fewest shared chunks is shown
    estimate     no record of single steps: a chunk of m tokens is read as m - 1 drafts and the target's own, a chunk
                 of more than k + 1 tokens as full steps and one with the rest
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from app.race.spelling import Lookup, Piece, split
from app.race.types import SpecRecord

Grade = Literal["exact", "approximate", "estimate"]
Kind = Literal["prefill", "draft", "target", "mixed", "unknown"]
MOST_STATES = 64
"""Readings kept side by side while a record is laid against chunks."""
WORTH_KEEPING = 16
"""A reading that is this much worse than the best so far is dropped."""


class Step(Struct, frozen=True, gc=False):
    """One engine step: of its ``tokens`` the first ``drafts`` were drafted and accepted, what remains is the target's
    own. ``drafted``: how many the draft had proposed, None when unknown. The prefill is a step of one token."""

    tokens: int
    drafts: int
    drafted: int | None = None
    prefill: bool = False


PREFILL = Step(1, 0, None, True)
OWN = Step(1, 0)


class Provenance(Struct, frozen=True, kw_only=True):
    """Steps of each chunk of a lane, None for a chunk whose tokens were not counted.

    ``drafted``: tokens of the answer that came from the draft; ``tokens``: of how many."""

    grade: Grade
    steps: tuple[tuple[Step, ...] | None, ...]
    drafted: int
    tokens: int


class Mark(Struct, frozen=True, gc=False):
    """A piece of a lane's text and where it came from.

    ``step`` is the number of its engine step, from 1 after the prefill (None while it is an estimate); ``position``
    that of its first token in the draft, from 1; ``drafts`` and ``drafted`` are those of the step. A "mixed" piece
    holds ``tokens`` of ``steps`` steps that cannot be told apart in the text, ``drafts`` of them from the draft."""

    text: str
    kind: Kind
    tokens: int
    step: int | None = None
    position: int | None = None
    drafts: int = 0
    drafted: int | None = None
    steps: int = 1


def provenance(sizes: Sequence[int | None], k: int | None, record: SpecRecord | None) -> Provenance:
    """Where the tokens of a lane came from. ``sizes``: tokens of each chunk, None where they were not counted; ``k``:
    draft tokens a step, None when unknown; ``record``: what the server says about this request."""
    counted = [size for size in sizes if size is not None]
    found = None
    if len(counted) == len(sizes) and record is not None and record.source == "request" and record.certain:
        found = _from_record(counted, record)
    grade, steps = found or ("estimate", _estimated(sizes, k))
    return Provenance(
        grade=grade,
        steps=tuple(steps),
        drafted=sum(step.drafts for chunk in steps for step in chunk or ()),
        tokens=sum(counted),
    )


# --- live: from the size of a chunk alone -----------------------------------------------------------


def guess(tokens: int, k: int | None, *, first: bool) -> tuple[Step, ...]:
    """The steps of a chunk of ``tokens``, read as the fewest that can have made it (as app/race/acceptance.py counts
    them); ``first``: it brings the lane's first token."""
    if tokens <= 0:
        return ()
    rest = tokens - 1 if first else tokens
    most = max(rest, 1) if k is None else k + 1
    full, left = divmod(rest, most)
    steps = (Step(most, most - 1),) * full + ((Step(left, left - 1),) if left else ())
    return (PREFILL, *steps) if first else steps


def _estimated(sizes: Sequence[int | None], k: int | None) -> list[tuple[Step, ...] | None]:
    steps: list[tuple[Step, ...] | None] = []
    first = True
    for size in sizes:
        steps.append(None if size is None else guess(size, k, first=first))
        first = first and not size
    return steps


# --- at the end: the record's steps laid against the chunks -----------------------------------------


def _from_record(sizes: list[int], record: SpecRecord) -> tuple[Grade, list[tuple[Step, ...]]] | None:
    """Grade and steps of each chunk, None when the record does not list steps or does not fit."""
    accepted = record.per_step_accepted
    if accepted is None:
        if record.accepted:
            return None
        accepted = ()
    drafted: Sequence[int | None] = record.per_step_drafted or (None,) * len(accepted)
    if len(drafted) != len(accepted):
        return None
    listed = [Step(a + 1, a, d) for a, d in zip(accepted, drafted, strict=True)]
    rests = list(sizes)
    first = next((at for at, size in enumerate(sizes) if size), None)
    if first is None:
        return None
    rests[first] -= 1
    found = _every_step(rests, listed) or _fewest_shared(rests, listed)
    if found is None:
        return None
    shared, steps = found
    steps[first] = (PREFILL, *steps[first])
    return ("approximate" if shared and record.accepted else "exact"), steps


def _cut(step: Step, tokens: int) -> Step:
    """The last step, of which only the first ``tokens`` were sent."""
    return Step(tokens, min(step.drafts, tokens), step.drafted)


def _every_step(rests: list[int], listed: list[Step]) -> tuple[int, list[tuple[Step, ...]]] | None:
    """Every step drafted: the listed steps one after the other fill the chunks exactly, but for the end of the last."""
    if not listed or not 0 <= sum(step.tokens for step in listed) - sum(rests) < listed[-1].tokens:
        return None
    steps: list[tuple[Step, ...]] = []
    at = 0
    for rest in rests:
        inside: list[Step] = []
        left = rest
        while left:
            if at == len(listed):
                return None
            step = listed[at]
            at += 1
            if step.tokens > left and at < len(listed):
                return None
            inside.append(step if step.tokens <= left else _cut(step, left))
            left -= inside[-1].tokens
        steps.append(tuple(inside))
    return 0, steps


def _fewest_shared(rests: list[int], listed: list[Step]) -> tuple[int, list[tuple[Step, ...]]] | None:
    """Listed steps in order, steps without a draft (one token each) anywhere between them: the reading in which the
    fewest chunks hold more than one step, and of these one whose last step was not cut. A state is the number of listed
    steps used up so far."""
    last = max((at for at, rest in enumerate(rests) if rest), default=-1)
    states = {0: 0}  # listed steps used up -> twice the chunks shared so far, one more for a cut
    came_from: list[dict[int, int]] = []
    for at, rest in enumerate(rests):
        following: dict[int, int] = {}
        origin: dict[int, int] = {}
        for used, shared in states.items():
            for then, steps, cut in _ways(rest, listed, used, ends=at == last):
                cost = shared + 2 * (steps > 1) + cut
                if cost < following.get(then, cost + 1):
                    following[then], origin[then] = cost, used
        states = _likely(following)
        came_from.append(origin)
    if len(listed) not in states:
        return None
    return states[len(listed)] // 2, _laid(rests, listed, came_from)


def _likely(states: dict[int, int]) -> dict[int, int]:
    """The best of many readings, so that laying a record is bounded work."""
    if len(states) < 8:
        return states
    limit = min(states.values()) + WORTH_KEEPING
    return dict(sorted((s for s in states.items() if s[1] < limit), key=lambda state: state[1])[:MOST_STATES])


def _ways(rest: int, listed: list[Step], used: int, *, ends: bool) -> list[tuple[int, int, bool]]:
    """(listed steps used up, steps in the chunk, whether one was cut) for every number of listed steps that a chunk of
    ``rest`` tokens can hold; in the chunk that ``ends`` the answer the last listed step may have been cut."""
    ways = [(used, rest, False)]
    left = rest
    for then in range(used, len(listed)):
        size = listed[then].tokens
        if size > left:
            if ends and left and then == len(listed) - 1:
                ways.append((then + 1, then + 1 - used, True))
            break
        left -= size
        ways.append((then + 1, then + 1 - used + left, False))
    return ways


def _laid(rests: list[int], listed: list[Step], came_from: list[dict[int, int]]) -> list[tuple[Step, ...]]:
    """The steps of each chunk on the way that ended with all listed steps used up."""
    steps: list[tuple[Step, ...]] = []
    then = len(listed)
    for rest, origin in zip(reversed(rests), reversed(came_from), strict=True):
        inside: list[Step] = []
        left = rest
        for step in listed[origin[then] : then]:
            # which of the steps of one token had a draft is not known here
            inside.append(OWN if step.tokens == 1 else step if step.tokens <= left else _cut(step, left))
            left -= inside[-1].tokens
        steps.append((*inside, *(OWN,) * left))
        then = origin[then]
    return steps[::-1]


# --- text -------------------------------------------------------------------------------------------


def marks(
    text: str, token_ids: Sequence[int] | None, steps: Sequence[Step] | None, lookup: Lookup, number: int | None = None
) -> list[Mark]:
    """The pieces of one chunk's ``text`` with their provenance; ``number``: steps from the prefill to this chunk."""
    if not steps:
        return [Mark(text, "unknown", 0)] if text else []
    if len(steps) == 1 and steps[0].tokens == 1:
        return _of_step(steps[0], [Piece(text, 1)], number)
    tokens = sum(step.tokens for step in steps)
    pieces = split(text, token_ids, lookup) if token_ids and len(token_ids) == tokens else [Piece(text, tokens)]
    found: list[Mark] = []
    for step in steps:
        inside = _take(pieces, step.tokens)
        if inside is None:
            return [_whole(text, steps, number)]
        found += _of_step(step, inside, number)
        number = number if number is None or step.prefill else number + 1
    return found


def _take(pieces: list[Piece], tokens: int) -> list[Piece] | None:
    """The first pieces, of ``tokens`` tokens together, taken off the list; None when no piece ends there."""
    taken: list[Piece] = []
    while tokens > 0 and pieces:
        taken.append(pieces.pop(0))
        tokens -= taken[-1].tokens
    return taken if tokens == 0 else None


def _whole(text: str, steps: Sequence[Step], number: int | None) -> Mark:
    """A chunk whose text cannot be cut between its steps."""
    after = [step for step in steps if not step.prefill]
    return Mark(
        text,
        "mixed" if any(step.drafts for step in after) else "target",
        sum(step.tokens for step in steps),
        None if number is None else number + 1,
        drafts=sum(step.drafts for step in after),
        steps=len(after),
    )


def _of_step(step: Step, pieces: list[Piece], number: int | None) -> list[Mark]:
    if step.prefill:
        return [Mark(piece.text, "prefill", piece.tokens) for piece in pieces]
    name = None if number is None else number + 1
    found: list[Mark] = []
    at = 0
    for piece in pieces:
        kind: Kind = "target" if at >= step.drafts else "draft" if at + piece.tokens <= step.drafts else "mixed"
        position = None if kind == "target" else at + 1
        found.append(Mark(piece.text, kind, piece.tokens, name, position, step.drafts, step.drafted))
        at += piece.tokens
    return found
