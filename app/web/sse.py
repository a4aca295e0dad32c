"""Frames to bytes: who gets which message when. A viewer is a cursor; there is no queue per viewer.

A frame is cut at most twenty times a second, rendered and encoded once for all who stand at the head of the log;
whoever lags or joins late gets a catch-up frame rebuilt from the log after its own cursor, and then joins them. Ids of
messages are ids of the log, so Last-Event-ID resumes anywhere without loss or repetition.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import msgspec
from sse_starlette import EventSourceResponse

from app.race.events import to_json
from app.race.run import Run
from app.web.render import Renderer

T = TypeVar("T")

FRAME_S = 0.05
SCORES_S = 0.2
PING_S = 10
SEND_TIMEOUT_S = 10
CONNECTION_LIFE_S = 600
SHUTDOWN_GRACE_S = 2


def message(data: str | bytes, *, event_id: int | None = None, event: str | None = None) -> bytes:
    """One SSE message with "\\n" only: hx-sse splits a message when a packet ends between CR and LF."""
    body = data.encode() if isinstance(data, str) else data
    head = b"" if event_id is None else b"id: %d\n" % event_id
    name = b"" if event is None else b"event: " + event.encode() + b"\n"
    body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    return b"%s%sdata: %s\n\n" % (head, name, body)


def done(status: str) -> bytes:
    """The last message of every stream. It has data: browsers ignore an event without (P26)."""
    return message(msgspec.json.encode({"status": status}), event="done")


def respond(content: AsyncIterator[bytes]) -> EventSourceResponse:
    """The response of every stream here. Generators end by themselves when races end at shutdown; the grace period
    lets that last frame out."""
    return EventSourceResponse(
        content,
        sep="\n",
        ping=PING_S,
        send_timeout=SEND_TIMEOUT_S,
        shutdown_grace_period=SHUTDOWN_GRACE_S,
        headers={"Cache-Control": "no-store, no-transform"},
    )


class Feed:
    """The frames of one run, cut once for everybody at the head."""

    def __init__(self, run: Run, renderer: Renderer) -> None:
        self.run = run
        self.cut = run.log.head
        self.followers = 0
        self._renderer = renderer
        self._came_from = self._seen = self.cut
        self._encoded = b""
        self._turned = asyncio.Event()
        self._scores_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def catch_up(self, after: int) -> tuple[int, bytes]:
        """Where a viewer at ``after`` stands next, and the message that takes it there, made for this viewer. A page
        may have been rendered past the last cut: it gets the scoreboard only."""
        upto = max(self.cut, after)
        return upto, message(self._render(after, upto, scores=True), event_id=upto)

    async def beyond(self, cursor: int) -> tuple[int, bytes] | None:
        """As ``catch_up``, once there is something beyond ``cursor``; None at the end of the run."""
        if self._task is None:
            self._task = asyncio.create_task(self._cutting(), name=f"frames of {self.run.meta.id}")
        while self.cut <= cursor:
            if self._task.done():
                return None
            await self._turned.wait()
        return (self.cut, self._encoded) if cursor == self._came_from else self.catch_up(cursor)

    def leave(self) -> None:
        """The last viewer left: stop rendering."""
        if self.followers == 0 and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _cutting(self) -> None:
        last_cut = 0.0
        try:
            while await self.run.log.beyond(self._seen):
                if not self.run.log.closed:
                    await asyncio.sleep(last_cut + FRAME_S - time.monotonic())
                last_cut = time.monotonic()
                self._next_cut(last_cut)
        finally:
            self._turn()

    def _next_cut(self, now_s: float) -> None:
        upto = self.run.log.head
        scores = self.run.log.closed or now_s - self._scores_at >= SCORES_S
        self._scores_at = now_s if scores else self._scores_at
        self._seen = upto
        html = self._render(self.cut, upto, scores=scores)
        if html.strip():
            # readings that change nothing on the page are carried along with what comes next
            self._encoded = message(html, event_id=upto)
            self._came_from, self.cut = self.cut, upto
            self._turn()

    def _turn(self) -> None:
        self._turned.set()
        self._turned = asyncio.Event()

    def _render(self, after: int, upto: int, *, scores: bool) -> str:
        run = self.run
        series = run.read_series()
        now_ms = run.now_ms()
        return self._renderer.frame(
            run.meta, run.board, run.log, after, upto, scores=scores, now_ms=now_ms, series=series
        )


class Feeds:
    """The feeds of all runs that somebody watches."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._feeds: dict[str, Feed] = {}

    async def frames(self, run: Run, after: int) -> AsyncIterator[bytes]:
        """Messages of HTML for one viewer, from after ``after`` (a larger id than there is means: all seen)."""
        feed = self._feeds.setdefault(run.meta.id, Feed(run, self._renderer))
        feed.followers += 1
        until = time.monotonic() + CONNECTION_LIFE_S
        try:
            with run.watched():
                cursor, encoded = feed.catch_up(min(after, run.log.head))
                yield encoded
                while following := await _within(until, feed.beyond(cursor)):
                    cursor, encoded = following
                    yield encoded
                if not run.log.closed:
                    # the connection has lived long enough: the browser comes back with its id
                    return
            yield done(run.board.status)
        finally:
            feed.followers -= 1
            if feed.followers == 0:
                feed.leave()
                self._feeds.pop(run.meta.id, None)


async def json_events(run: Run, after: int) -> AsyncIterator[bytes]:
    """Every event as JSON, one message each, for scripts; ends with ``done``."""
    until = time.monotonic() + CONNECTION_LIFE_S
    cursor = after
    with run.watched():
        while await _within(until, run.log.beyond(cursor)):
            for event in run.log.between(cursor):
                cursor += 1
                yield message(to_json(event), event_id=cursor)
        if not run.log.closed:
            return
    yield done(run.board.status)


async def _within(until_s: float, waiting: Awaitable[T]) -> T | None:
    """What ``waiting`` gives, None when it is not there at ``until_s`` (monotonic)."""
    try:
        async with asyncio.timeout(until_s - time.monotonic()):
            return await waiting
    except TimeoutError:
        return None
