"""Templates, compiled once, always escaping. A name that a view does not have is an error, never an empty string."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app.errors import SpecraceError
from app.race.log import Log
from app.race.scoreboard import Scoreboard
from app.race.series import Series
from app.race.summary import RaceMeta
from app.web import frames, words
from app.web.views import ArenaView, CheckView, HistoryRow, PageView, SeriesView, StatusView

ROOT = Path(__file__).resolve().parent.parent.parent


class Renderer:
    """Views in, HTML out."""

    def __init__(self, templates: Path = ROOT / "templates", static: Path = ROOT / "static") -> None:
        self._env = Environment(
            loader=FileSystemLoader(templates),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        cast("dict[str, object]", self._env.globals).update(
            css=_versioned(static, "app.css"),
            js=_versioned(static, "app.js"),
            theme=_versioned(static, "theme.js"),
            icon=_versioned(static, "icon.svg"),
            about=words.ABOUT,
            caveats=words.CAVEATS,
            sources=words.SOURCES,
        )
        for name in self._env.list_templates():
            self._env.get_template(name)

    def index(self, view: PageView) -> str:
        """The whole page: GET / and GET /races/{id}."""
        return self._render("page.html", page=view)

    def deck(self, view: PageView) -> str:
        """What changes when another tab or prompt is picked."""
        return self._render("_deck.html", page=view)

    def arena(self, view: ArenaView, *, ticket: str) -> str:
        """Panes, scoreboard and stream of one race, and a new ticket for the start form."""
        return self._render("frames/arena.html", arena=view, ticket=ticket)

    def status(self, view: StatusView) -> str:
        """Lamps, engines, start button and the next poll."""
        return self._render("frames/status.html", status=view)

    def history(self, rows: Sequence[HistoryRow]) -> str:
        """Past races, newest first."""
        return self._render("history.html", rows=rows)

    def check(self, view: CheckView, *, fragment: bool = False) -> str:
        """The check before a show: its page, or the part of it that changes while one runs."""
        return self._render("frames/check.html" if fragment else "check.html", check=view)

    def series(self, view: SeriesView, *, fragment: bool) -> str:
        """A series on a page of its own, or the part of it that changes while it runs."""
        return self._render("_series.html" if fragment else "series.html", series=view)

    def no_next(self) -> str:
        """There is no next race to ask for."""
        return self._render("frames/next.html", next_race=None)

    def problem(self, error: SpecraceError, *, fragment: bool = False, ticket: str | None = None) -> str:
        """What went wrong and what to do: a page, or a notice that leaves the rest of the page alone."""
        if fragment:
            return self._render("frames/problem.html", error=error, ticket=ticket)
        return self._render("problem.html", error=error)

    def frame(
        self,
        meta: RaceMeta,
        board: Scoreboard,
        log: Log,
        after: int,
        upto: int,
        *,
        scores: bool,
        now_ms: float,
        series: Series | None = None,
    ) -> str:
        """One SSE message: see app/web/frames.py."""
        view = frames.frame(meta, board, log, after, upto, scores=scores, now_ms=now_ms, series=series)
        return self._render("frames/frame.html", frame=view)

    def _render(self, name: str, **context: object) -> str:
        return self._env.get_template(name).render(context)


def _versioned(static: Path, name: str) -> str:
    """Address of a file with its fingerprint, so that browsers may keep it for ever."""
    digest = hashlib.sha256((static / name).read_bytes()).hexdigest()[:10]
    return f"/static/{name}?v={digest}"
