"""The log of one race: append-only, read by cursor. A viewer is a number, never a queue.

Event n has id n, counted from 1 without gaps; "after 0" is the whole race.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from app.race.events import Event


class Log:
    """Events of one race in memory. One writer (the race), any number of readers on the same loop."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._closed = False
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def head(self) -> int:
        """Id of the newest event, 0 when there is none."""
        return len(self._events)

    @property
    def closed(self) -> bool:
        """Whether the race is over: nothing will be appended any more."""
        return self._closed

    def append(self, event: Event) -> int:
        """Add an event and wake whoever waits; returns its id.

        Raises:
            RuntimeError: the log is closed.
        """
        if self._closed:
            raise RuntimeError("this race is over")
        self._events.append(event)
        self._wake()
        return len(self._events)

    def close(self) -> None:
        """No event comes after this."""
        self._closed = True
        self._wake()

    def between(self, after: int, upto: int | None = None) -> Sequence[Event]:
        """Events with ids after+1 .. upto (default: head)."""
        return self._events[max(after, 0) : upto]

    async def beyond(self, after: int) -> bool:
        """Wait until there is an event after ``after``; False when the log closed without one."""
        while self.head <= after:
            if self._closed:
                return False
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            finally:
                # a reader that goes away in a silent race leaves nothing behind
                if future.cancelled():
                    self._waiting = [other for other in self._waiting if other is not future]
        return True

    async def follow(self, after: int = 0) -> AsyncIterator[tuple[int, Event]]:
        """(id, event) from ``after`` on, until the log closes."""
        cursor = max(after, 0)
        while await self.beyond(cursor):
            for event in self.between(cursor):
                cursor += 1
                yield cursor, event

    def _wake(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
