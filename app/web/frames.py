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
    LaneStarted,
    RaceFinished,
    RaceStarted,
)
from app.race.log import Log
from app.race.scoreboard import Scoreboard
from app.race.summary import RaceMeta
from app.race.types import LANES, LaneName
from app.web import board as boards
from app.web import format as say
from app.web import insight as below
from app.web import panes
from app.web.views import FrameView, TextView


def frame(
    meta: RaceMeta, board: Scoreboard, log: Log, after: int, upto: int, *, scores: bool, now_ms: float
) -> FrameView:
    """What changes on the page by events ``after + 1`` to ``upto``; ``board`` has taken in ``upto``.

    ``scores`` asks for the scoreboard; it comes unasked when a state changed or the race is over.
    """
    events = log.between(after, upto)
    changed = board.over or any(not isinstance(event, (LaneChunk, LaneFigures, ComparisonRead)) for event in events)
    scores = scores or changed
    spoken = any(isinstance(event, (RaceStarted, LaneFailed, RaceFinished)) for event in events)
    return FrameView(
        texts=tuple(text for lane in LANES if (text := _text(log, events, after, lane)) is not None),
        panes=tuple(panes.pane(meta, board, lane, now_ms) for lane in LANES) if scores else (),
        score=boards.score(meta, board, now_ms) if scores else None,
        insight=below.insight(meta, board, now_ms) if changed else None,
        actions=boards.actions(meta, board) if board.over else None,
        say=boards.spoken(meta, board) if spoken else None,
    )


def _text(log: Log, events: Sequence[Event], after: int, lane: LaneName) -> TextView | None:
    """New text of one lane, or None. A lane that was asked again begins with an empty pane."""
    answer: list[str] = []
    reasoning: list[str] = []
    afresh = False
    for event in events:
        if isinstance(event, LaneChunk) and event.lane == lane:
            (reasoning if event.reasoning else answer).append(event.text)
        elif isinstance(event, LaneStarted) and event.lane == lane and event.retried:
            answer, reasoning, afresh = [], [], True
    if not afresh and not any(answer) and not any(reasoning):
        return None
    before = 0 if afresh else after
    return TextView(
        lane=lane,
        answer=_joined(log, before, lane, answer, reasoning=False),
        reasoning=_joined(log, before, lane, reasoning, reasoning=True),
        afresh=afresh,
    )


def _joined(log: Log, after: int, lane: LaneName, pieces: Sequence[str], *, reasoning: bool) -> str:
    """The pieces as one displayed text, without a line feed whose carriage return went out with an earlier frame."""
    text = "".join(pieces)
    if text.startswith("\n") and _ended_with_cr(log, after, lane, reasoning=reasoning):
        text = text[1:]
    return say.displayed(text)


def _ended_with_cr(log: Log, after: int, lane: LaneName, *, reasoning: bool) -> bool:
    for event in reversed(log.between(0, after)):
        if isinstance(event, LaneChunk) and event.lane == lane and event.reasoning == reasoning and event.text:
            return event.text.endswith("\r")
        if isinstance(event, LaneStarted) and event.lane == lane:
            return False
    return False
