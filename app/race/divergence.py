"""The same text? Where two greedy answers part, by token ids or by text, and how each goes on. Pure.

Events carry the text of a chunk, not of a token. The text in front of token i is exact where a chunk of either lane
begins with token i (the baseline sends a token a chunk), or where the texts of the tokens between are known
(app/race/spelling.py). Else it is the longest common prefix, cut back to the beginning of a word and marked
approximate: two different tokens may begin with the same letters.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, structs

from app.race.spelling import Lookup, split
from app.race.types import Candidate, TextVerdict

TextBasis = Literal["token_ids", "text"]
WhyNotCompared = Literal["sampled", "unfinished", "no_answer"]

BEFORE_CHARS = 160
"""How much of the common text is shown."""
AFTER_CHARS = 240
"""How much of each continuation is shown."""
_REST_OF_WORD = re.compile(r"\S{0,20}\s+")
_HALF_A_WORD = re.compile(r"\s\S{0,20}$")
_LAST_WORD = re.compile(r"\s*\w*$")
_WORD = re.compile(r"\s*(?:\w+|[^\w\s]+)|\s+")


def _unknown(_: int) -> str | None:
    return None


class Answer(Struct, frozen=True):
    """One lane's answer as it came: ``pieces`` are (tokens, text) of each chunk, reasoning included; ``token_ids`` None
    when a chunk came without; ``lookup`` tells the text of a token where it is known (app/race/spelling.py)."""

    pieces: Sequence[tuple[int, str]]
    token_ids: Sequence[int] | None
    lookup: Lookup = _unknown

    @property
    def text(self) -> str:
        """All of it, reasoning first."""
        return "".join(text for _, text in self.pieces)


class Margin(Struct, frozen=True, kw_only=True):
    """How close the two candidates were at token ``index``, as the baseline's server rated both when asked after the
    race. ``difference``: logprob of the baseline's token - logprob of the speculative's; None when one is missing."""

    index: int
    baseline: Candidate
    speculative: Candidate
    difference: float | None


class Continuation(Struct, frozen=True, kw_only=True):
    """How one answer goes on: the text of its first differing token, then the rest, cut short (``cut``). ``token_id``
    is None without ids or when the answer has ended there (``ended``)."""

    token_id: int | None
    first: str
    rest: str
    cut: bool = False
    ended: bool = False


class Divergence(Struct, frozen=True, kw_only=True):
    """Where two greedy answers part. ``token`` counts from 0, None without token ids; ``character`` is the length of
    the common text and ``before`` its end. ``approximate``: which letters belong to which token is not known."""

    basis: TextBasis
    token: int | None
    character: int
    before: str
    baseline: Continuation
    speculative: Continuation
    approximate: bool = False
    margin: Margin | None = None


class TextReading(Struct, frozen=True, kw_only=True):
    """Whether both answers are the same text, and how that was told; ``reason`` says why it was not. ``tokens`` is how
    many both have when they are identical."""

    verdict: TextVerdict
    basis: TextBasis | None = None
    tokens: int | None = None
    reason: WhyNotCompared | None = None
    divergence: Divergence | None = None


def compare(baseline: Answer, speculative: Answer) -> TextReading:
    """Compare two finished greedy answers, by token ids where both have them."""
    if baseline.token_ids is None or speculative.token_ids is None:
        return _by_text(baseline.text, speculative.text)
    index = first_difference(baseline.token_ids, speculative.token_ids)
    if index is None:
        return TextReading(verdict="identical", basis="token_ids", tokens=len(baseline.token_ids))
    lanes = (_Lane(baseline, index), _Lane(speculative, index))
    start, exact = _start(*lanes)
    sides = [lane.continuation(start) for lane in lanes]
    return TextReading(
        verdict="diverged",
        basis="token_ids",
        divergence=Divergence(
            basis="token_ids",
            token=index,
            character=start,
            before=_tail(lanes[0].text[:start]),
            baseline=sides[0][0],
            speculative=sides[1][0],
            approximate=not (exact and sides[0][1] and sides[1][1]),
        ),
    )


def margin(index: int, baseline: Candidate, speculative: Candidate) -> Margin:
    """Both candidates with their difference: logprob of the baseline's token - logprob of the speculative's."""
    difference = None
    if baseline.logprob is not None and speculative.logprob is not None:
        difference = baseline.logprob - speculative.logprob
    return Margin(index=index, baseline=baseline, speculative=speculative, difference=difference)


NEAR_TIE = 0.25
"""Two log-probabilities this close are a near-tie: bfloat16 keeps 8 bits, so scores between 16 and 32 come in steps of
0.125, and each of the two may be rounded by one."""


def closeness(found: Margin) -> Literal["tie", "near", "clear"] | None:
    """How close the two candidates were; None when one of them was not rated."""
    if found.difference is None:
        return None
    if found.difference == 0:
        return "tie"
    return "near" if abs(found.difference) <= NEAR_TIE else "clear"


def probability(candidate: Candidate) -> float | None:
    """The target's probability of a candidate, 0..1."""
    return None if candidate.logprob is None else math.exp(candidate.logprob)


def rated(reading: TextReading, margin: Margin | None) -> TextReading:
    """``reading`` with what the server said of the two candidates, if it is about the same token."""
    found = reading.divergence
    if found is None or margin is None or found.token != margin.index:
        return reading
    return structs.replace(reading, divergence=structs.replace(found, margin=margin))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs (a shorter sequence differs where it ends), None when equal."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def _by_text(base: str, spec: str) -> TextReading:
    if base == spec:
        return TextReading(verdict="identical", basis="text")
    start = _whole_back(base, spec, _common(base, spec))
    found = Divergence(
        basis="text",
        token=None,
        character=start,
        before=_tail(base[:start]),
        baseline=_word_on(base, start),
        speculative=_word_on(spec, start),
    )
    return TextReading(verdict="diverged", basis="text", divergence=found)


def _word_on(text: str, start: int) -> Continuation:
    """What follows ``start`` where tokens are not known: the first word stands for the first token."""
    return _continuation(text, start, _end_of_word(text, start, len(text)), None, ended=start == len(text))


class _Lane:
    """One answer around token ``index``: where its chunk begins, and the borders of tokens that are known in it."""

    def __init__(self, answer: Answer, index: int) -> None:
        self.text = answer.text
        self._token = answer.token_ids[index] if answer.token_ids and index < len(answer.token_ids) else None
        self._index = index
        self.begin = self.end = 0
        """Where the text of the chunk begins and ends."""
        first = last = 0
        for tokens, text in answer.pieces:
            first, self.begin = last, self.end
            last, self.end = first + tokens, self.begin + len(text)
            if last > index:
                break
        else:
            first, self.begin = last, self.end
        self._borders = {first: self.begin}
        """Token index -> where its text begins."""
        at, text = self.begin, self.text[self.begin : self.end]
        for piece in split(text, (answer.token_ids or ())[first:last], answer.lookup):
            first, at = first + piece.tokens, at + len(piece.text)
            self._borders[first] = at

    def exact_start(self) -> int | None:
        """Where the text of token ``index`` begins, None when that is not known."""
        return self._borders.get(self._index)

    def continuation(self, start: int) -> tuple[Continuation, bool]:
        """What follows ``start``, and whether its first token is exact."""
        if self._token is None:
            # tokens are over; text that comes all the same is shown as the rest
            return _continuation(self.text, start, start, None, ended=True), True
        end = self._borders.get(self._index + 1)
        exact = end is not None and end >= start
        if end is None or not exact:
            end = _end_of_word(self.text, start, max(self.end, start))
        return _continuation(self.text, start, end, self._token, ended=False), exact


def _start(base: _Lane, spec: _Lane) -> tuple[int, bool]:
    """Length of the common text, and whether it is exact."""
    for lane in (base, spec):
        at = lane.exact_start()
        if at is not None and base.text[:at] == spec.text[:at]:
            whole = _whole_back(base.text, spec.text, at)
            return whole, whole == at
    common = _common(base.text, spec.text)
    sure = min(common, max(base.begin, spec.begin))
    # back to where the last word of the common text begins: the tokens may share its first letters
    last = _LAST_WORD.search(base.text[sure:common])
    return _whole_back(base.text, spec.text, sure + (last.start() if last else 0)), False


# --- cutting text -----------------------------------------------------------------------------------


def _common(one: str, other: str) -> int:
    """Length of the longest common prefix."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))


def _splits(text: str, at: int) -> bool:
    """Whether a cut before ``at`` would part what people read as one character."""
    if not 0 < at < len(text):
        return False
    left, right = text[at - 1], text[at]
    if unicodedata.category(right) in ("Mn", "Mc", "Me") or "\u200d" in (left, right):
        return True
    if "\U0001f3fb" <= right <= "\U0001f3ff" or (left, right) == ("\r", "\n"):
        return True
    flags = 0
    while at - flags > 0 and "\U0001f1e6" <= text[at - flags - 1] <= "\U0001f1ff":
        flags += 1
    return flags % 2 == 1 and "\U0001f1e6" <= right <= "\U0001f1ff"


def _whole_back(one: str, other: str, at: int) -> int:
    """The nearest place at or before ``at`` where neither text is cut inside a character."""
    while at > 0 and (_splits(one, at) or _splits(other, at)):
        at -= 1
    return at


def _whole_on(text: str, at: int) -> int:
    """The nearest place at or after ``at`` where the text is not cut inside a character."""
    while _splits(text, at):
        at += 1
    return at


def _end_of_word(text: str, start: int, limit: int) -> int:
    found = _WORD.match(text, start, limit)
    return start if found is None else found.end()


def _tail(text: str) -> str:
    """The end of a text, from a word's beginning where one is near."""
    at = max(0, len(text) - BEFORE_CHARS)
    near = _REST_OF_WORD.match(text, at) if at else None
    return text[near.end() if near else _whole_on(text, at) :]


def _continuation(text: str, start: int, end: int, token: int | None, *, ended: bool) -> Continuation:
    end = _whole_on(text, end) if end > start else end
    stop = _whole_on(text, min(len(text), end + AFTER_CHARS))
    near = _HALF_A_WORD.search(text, max(end, stop - 30), stop) if stop < len(text) else None
    stop = near.start() if near else stop
    return Continuation(token_id=token, first=text[start:end], rest=text[end:stop], cut=stop < len(text), ended=ended)
