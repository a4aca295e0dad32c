"""The text of a pane, with its drafted tokens marked: app/race/provenance.py → spans. Pure; it computes no figure.

A span holds pieces of text and, for the pointer, the tokens in it: ``ink``, one word a step, with the length of each
token in UTF-16 units (as browsers count):

    p:5          the token of the prefill
    3/4:5,2,3,4  a step that emitted 3 accepted tokens of a draft of 4, then the target's own token
    :4           a step of one token, not known whether it had a draft ("0/4:4": 4 were drafted and none accepted)
    3/:12*3,4    three tokens whose borders are not known, drafted all of them
    ~2.5.7:30    two steps that cannot be told apart in the text: 5 of their 7 tokens were drafted
    ?:8          text without counted tokens
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.race.events import LaneChunk
from app.race.provenance import Grade, Mark, guess, marks
from app.race.scoreboard import LaneBoard, Scoreboard
from app.race.types import LaneName
from app.web import format as say
from app.web.views import InkView, PartMark, PartView, SpanView, TextView

SPAN_CHARS = 600
"""A span of a whole text ends with the step that passes this length: short enough to be searched under a pointer."""
GRADES: dict[Grade, str] = {
    "exact": "exact",
    "approximate": "approximate",
    "estimate": "estimate from chunk sizes",
}


def summary(it: LaneBoard) -> InkView | None:
    """How much of a lane's answer came from the draft; None where the question makes no sense."""
    if not it.drafts_shown or not it.chunks:
        return None
    grade: Grade = "estimate"
    if it.ended or it.closed:
        found = it.provenance
        grade, drafted, tokens = found.grade, found.drafted, found.tokens
    else:
        drafted, tokens = it.drafted_so_far
    if not tokens:
        return None
    return InkView(
        drafted=say.count(drafted), tokens=say.count(tokens), words=GRADES[grade], estimated=grade != "exact"
    )


def whole(board: Scoreboard, lane: LaneName, *, afresh: bool = False) -> TextView:
    """All the text of a lane so far."""
    it = board.lanes[lane]
    if not it.drafts_shown:
        return TextView(lane=lane, answer=say.displayed(it.text), reasoning=say.displayed(it.reasoning), afresh=afresh)
    found = it.provenance
    lookup = board.vocabulary.lookup(lane)
    number = 0 if it.ended or it.closed else None
    parts: dict[bool, list[Mark]] = {False: [], True: []}
    for chunk, steps in zip(it.received, found.steps, strict=True):
        parts[chunk.reasoning] += marks(chunk.text, chunk.token_ids, steps, lookup, number)
        if number is not None:
            number += sum(not step.prefill for step in steps or ())
    spans = {
        reasoning: _spans(pieces, hint=found.grade != "exact", chars=SPAN_CHARS) for reasoning, pieces in parts.items()
    }
    return _view(lane, spans[False], spans[True], afresh=afresh)


def fresh(
    board: Scoreboard, lane: LaneName, chunks: Sequence[LaneChunk], *, afresh: bool, after_cr: tuple[bool, bool]
) -> TextView | None:
    """The text of new chunks, marked by a guess from their sizes, None when there is none. ``after_cr``: whether the
    answer and the reasoning before them ended with a carriage return."""
    it = board.lanes[lane]
    lookup = board.vocabulary.lookup(lane)
    first = it.received[0] if it.received else None
    k = it.identity.num_speculative_tokens
    parts: dict[bool, list[Mark]] = {False: [], True: []}
    for chunk in chunks:
        steps = None if chunk.tokens is None else guess(chunk.tokens, k, first=chunk is first)
        parts[chunk.reasoning] += marks(chunk.text, chunk.token_ids, steps, lookup)
    if not afresh and not any(mark.text for pieces in parts.values() for mark in pieces):
        return None
    answer = _spans(parts[False], hint=True, after_cr=after_cr[0])
    return _view(lane, answer, _spans(parts[True], hint=True, after_cr=after_cr[1]), afresh=afresh)


def _view(lane: LaneName, answer: tuple[SpanView, ...], reasoning: tuple[SpanView, ...], *, afresh: bool) -> TextView:
    return TextView(
        lane=lane,
        answer="".join(part.text for span in answer for part in span.parts),
        reasoning="".join(part.text for span in reasoning for part in span.parts),
        answer_spans=answer,
        reasoning_spans=reasoning,
        afresh=afresh,
    )


def _spans(
    pieces: Iterable[Mark], *, hint: bool, chars: int | None = None, after_cr: bool = False
) -> tuple[SpanView, ...]:
    """Spans of ``chars`` characters or a little more, or all in one. A line feed after a carriage return is dropped,
    wherever the text is cut between them."""
    spans: list[SpanView] = []
    pen = _Pen()
    for mark in pieces:
        begins = _begins(mark)
        if chars is not None and begins and pen.chars > chars:
            spans.append(pen.span(hint))
            pen = _Pen()
        text = mark.text
        if after_cr and text:
            text = text.removeprefix("\n")
        after_cr = mark.text.endswith("\r") if mark.text else after_cr
        pen.write(mark, say.displayed(text), begins)
    if pen.chars:
        spans.append(pen.span(hint))
    return tuple(spans)


def _begins(mark: Mark) -> bool:
    """Whether a mark is the first of its step."""
    if mark.kind == "target":
        return not mark.drafts
    return mark.position in (None, 1)


class _Pen:
    """Writes one span."""

    def __init__(self) -> None:
        self.chars = 0
        self._step: int | None = None
        self._ink: list[str] = []
        self._parts: list[PartView] = []
        self._run: list[str] = []
        self._mark: PartMark = ""

    def write(self, mark: Mark, text: str, begins: bool) -> None:
        """One more piece of text; neighbours that look alike become one."""
        self._step = mark.step if self._step is None else self._step
        length = len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
        word = str(length) if mark.tokens == 1 else f"{length}*{mark.tokens}"
        self._ink.append(_opening(mark, length, word) if begins or not self._ink else f",{word}")
        if not text:
            return
        look: PartMark = "draft" if mark.kind == "draft" else "mixed" if mark.kind == "mixed" else ""
        if look != self._mark:
            self._flush()
            self._mark = look
        self._run.append(text)
        self.chars += len(text)

    def _flush(self) -> None:
        if self._run:
            self._parts.append(PartView(text="".join(self._run), mark=self._mark))
            self._run = []

    def span(self, hint: bool) -> SpanView:
        """What was written."""
        self._flush()
        return SpanView(parts=tuple(self._parts), ink="".join(self._ink).lstrip(), step=self._step, hint=hint)


def _opening(mark: Mark, length: int, word: str) -> str:
    """The beginning of a step's word in ``ink``."""
    if mark.kind == "prefill":
        return f" p:{length}"
    if mark.kind == "unknown":
        return f" ?:{length}"
    if mark.position is None and mark.tokens > 1:
        return f" ~{mark.steps}.{mark.drafts}.{mark.tokens}:{length}"
    if not mark.drafts and mark.drafted is None:
        return f" :{word}"
    return f" {mark.drafts}/{'' if mark.drafted is None else mark.drafted}:{word}"
