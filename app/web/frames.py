"""The HTML of one SSE message: what happened between two ids of the log, for a page that has seen the first.

A catch-up frame after a lost connection is the same thing with a wider gap. Text is appended and never rendered
again; headings, scoreboard and the rest are the very partials that the page itself includes.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.race.events import (
    ComparisonRead,
    Event,
    LaneChunk,
    LaneFailed,
    LaneFigures,
    LaneFinished,
    LaneStarted,
    LaneVocabulary,
    RaceFinished,
    RaceStarted,
)
from app.race.log import Log
from app.race.scoreboard import Scoreboard
from app.race.series import Series
from app.race.summary import RaceMeta
from app.race.types import LANES, LaneName
from app.web import board as boards
from app.web import format as say
from app.web import ink, panes
from app.web import insight as below
from app.web.drafts import drafts
from app.web.views import FrameView, TextView

UNSEEN = (LaneChunk, LaneVocabulary, LaneFigures, ComparisonRead)
"""Events that change no state."""
DRAFTS_EVERY_MS = 1000


def frame(
    meta: RaceMeta,
    board: Scoreboard,
    log: Log,
    after: int,
    upto: int,
    *,
    scores: bool,
    now_ms: float,
    series: Series | None = None,
) -> FrameView:
    """What changes on the page by events ``after + 1`` to ``upto``; ``board`` has taken in ``upto``.

    ``scores`` asks for the scoreboard; it comes unasked when a state changed or the race is over.
    """
    events = log.between(after, upto)
    changed = board.over or any(not isinstance(event, UNSEEN) for event in events)
    scores = scores or changed
    spoken = any(isinstance(event, (RaceStarted, LaneFailed, RaceFinished)) for event in events)
    return FrameView(
        texts=tuple(text for lane in LANES if (text := _text(board, log, events, after, lane)) is not None),
        panes=tuple(panes.pane(meta, board, lane, now_ms) for lane in LANES) if scores else (),
        score=boards.score(meta, board, now_ms, series=series) if scores else None,
        insight=below.insight(meta, board, now_ms, series=series) if changed else None,
        drafts=None if changed or not _second_passed(events) else drafts(board, now_ms),
        actions=boards.actions(meta, board, series) if board.over else None,
        say=boards.spoken(meta, board) if spoken else None,
        next_race=boards.next_race(meta, series) if board.over else None,
    )


def _second_passed(events: Sequence[Event]) -> bool:
    """Whether a whole second of race time ends among the events: how often the live estimate of drafts is drawn."""
    return bool(events) and int(events[-1].t_ms // DRAFTS_EVERY_MS) > int(events[0].t_ms // DRAFTS_EVERY_MS)


def _text(board: Scoreboard, log: Log, events: Sequence[Event], after: int, lane: LaneName) -> TextView | None:
    """New text of one lane, or None. A lane that was asked again begins with an empty pane; one with drafts comes whole
    once more when it is over, and when the race is: which tokens were drafted is known better then."""
    chunks: list[LaneChunk] = []
    afresh = settled = False
    for event in events:
        if isinstance(event, LaneChunk) and event.lane == lane:
            chunks.append(event)
        elif isinstance(event, LaneStarted) and event.lane == lane and event.retried:
            chunks, afresh = [], True
        elif isinstance(event, RaceFinished) or (isinstance(event, (LaneFinished, LaneFailed)) and event.lane == lane):
            settled = True
    it = board.lanes[lane]
    if it.drafts_shown and settled and it.provenance.drafted:
        return ink.whole(board, lane, afresh=True)
    if not afresh and not any(chunk.text for chunk in chunks):
        return None
    before = 0 if afresh else after
    if it.drafts_shown:
        ended = [_cut_in_a_break(log, before, lane, chunks, reasoning=reasoning) for reasoning in (False, True)]
        return ink.fresh(board, lane, chunks, afresh=afresh, after_cr=(ended[0], ended[1]))
    return TextView(
        lane=lane,
        answer=_joined(log, before, lane, chunks, reasoning=False),
        reasoning=_joined(log, before, lane, chunks, reasoning=True),
        afresh=afresh,
    )


def _joined(log: Log, after: int, lane: LaneName, chunks: Sequence[LaneChunk], *, reasoning: bool) -> str:
    """The chunks as one displayed text."""
    text = "".join(chunk.text for chunk in chunks if chunk.reasoning == reasoning)
    cut = _cut_in_a_break(log, after, lane, chunks, reasoning=reasoning)
    return say.displayed(text.removeprefix("\n") if cut else text)


def _cut_in_a_break(log: Log, after: int, lane: LaneName, chunks: Sequence[LaneChunk], *, reasoning: bool) -> bool:
    """Whether the chunks begin with a line feed whose carriage return went out with an earlier frame."""
    text = next((chunk.text for chunk in chunks if chunk.reasoning == reasoning and chunk.text), "")
    return text.startswith("\n") and _ended_with_cr(log, after, lane, reasoning=reasoning)


def _ended_with_cr(log: Log, after: int, lane: LaneName, *, reasoning: bool) -> bool:
    for event in reversed(log.between(0, after)):
        if isinstance(event, LaneChunk) and event.lane == lane and event.reasoning == reasoning and event.text:
            return event.text.endswith("\r")
        if isinstance(event, LaneStarted) and event.lane == lane:
            return False
    return False
