"""Acceptance, position by position: what is shown of it below the first screen. Pure; it computes no figure."""

from __future__ import annotations

from collections.abc import Sequence

from app.race.scoreboard import LaneBoard, Scoreboard
from app.race.types import Acceptance
from app.web import draft_words, words
from app.web import format as say
from app.web.views import DraftBarsView, DraftBarView, DraftFigureView, DraftsView, NoteView


def drafts(board: Scoreboard, now_ms: float) -> DraftsView:
    """The panel at ``now_ms`` (race clock): figures, bars, or why there are none."""
    it = board.lanes["speculative"]
    reading = board.numbers("speculative", now_ms).acceptance
    absent = missing(board, it, reading)
    if reading is None or absent is not None:
        title, text = absent or draft_words.NOTHING["no_record"]
        return DraftsView(note=NoteView(title=title, text=text))
    return DraftsView(
        source=words.SOURCES[reading.source][0],
        about=f"source-{reading.source}",
        estimated=reading.source == "stream",
        mixture=None if reading.exclusive else words.CAVEATS["other_traffic"][1],
        figures=_figures(reading),
        per_position=_positions(reading.per_position, "accepted in", "of all steps with a draft"),
        conditional=_positions(reading.conditional, "accepted in", "of the steps that accepted all before it"),
        histogram=_histogram(reading.histogram),
    )


def missing(board: Scoreboard, it: LaneBoard, reading: Acceptance | None) -> tuple[str, str] | None:
    """Why there is no acceptance to show, in a few words and in a sentence; None when there is some."""
    if it.speculating is False:
        return draft_words.NOTHING["not_speculating"]
    if reading is None:
        if not board.over:
            return draft_words.NOTHING["no_token" if it.first_ms is None or it.ended else "no_draft"]
        unfinished = it.error is not None or board.status in ("stopped", "interrupted", "failed")
        return draft_words.NOTHING["unfinished" if unfinished else "no_record"]
    if reading.doubt is not None:
        return draft_words.COUNTER_DOUBTS[reading.doubt]
    return draft_words.NOTHING["no_drafts_ran"] if reading.drafted == 0 else None


def _figures(reading: Acceptance) -> tuple[DraftFigureView, ...]:
    shown = (
        ("acceptance", None if reading.rate is None else say.percent(reading.rate)),
        ("length", None if reading.mean_length is None else say.length(reading.mean_length)),
        (
            "effective",
            None if reading.effective_tokens_per_pass is None else say.length(reading.effective_tokens_per_pass),
        ),
        ("share", None if reading.share_of_output is None else say.percent(reading.share_of_output)),
        ("alpha", None if reading.alpha is None else say.length(reading.alpha)),
        ("steps", None if reading.drafts is None else say.count(reading.drafts)),
        ("drafted", None if reading.drafted is None else say.count(reading.drafted)),
        ("accepted", None if reading.accepted is None else say.count(reading.accepted)),
    )
    known = {about.key: about for about in words.ABOUT}
    return tuple(
        DraftFigureView(
            key=key, title=draft_words.TITLES[key], formula=known[key].formula, text=text or say.NA, none=text is None
        )
        for key, text in shown
    )


def _positions(shares: Sequence[float | None] | None, before: str, after: str) -> DraftBarsView | None:
    if not shares:
        return None
    return DraftBarsView(
        bars=tuple(
            DraftBarView(
                name=str(i),
                length=0 if share is None else round(1000 * share),
                text=say.percent(share),
                told=f"position {i}: "
                + ("no step got this far" if share is None else f"{before} {say.percent(share)} {after}"),
                none=share is None,
            )
            for i, share in enumerate(shares, start=1)
        )
    )


def _histogram(counts: Sequence[int] | None) -> DraftBarsView | None:
    if not counts or not any(counts):
        return None
    longest = max(counts)
    return DraftBarsView(
        bars=tuple(
            DraftBarView(
                name=str(j),
                length=round(1000 * n / longest),
                text=say.count(n),
                told=f"exactly {j} accepted: {say.count(n)} {'step' if n == 1 else 'steps'}",
            )
            for j, n in enumerate(counts)
        )
    )
