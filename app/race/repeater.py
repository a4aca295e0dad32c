"""Series that run: one race after the other through the hub, each waiting for the pair like anybody's.

A series ends when all its races are over, or with a race that was stopped, interrupted or in which neither lane
finished. One that a page started and that nobody watches is stopped by the same rule as a race; the pause between two
races does not count as leaving.
"""

from __future__ import annotations

import asyncio

import anyio
import structlog
from msgspec import Struct, structs

from app.errors import Busy
from app.race.clock import MonotonicNs, monotonic_ns, ms_between
from app.race.hub import Hub, new_id
from app.race.run import Run
from app.race.series import Asked, Series, SeriesStatus, asked_of, ended_as, reading, who_goes_first
from app.race.summary import RaceSummary
from app.race.types import RaceSpec

_log = structlog.get_logger()


class Pace(Struct, frozen=True, kw_only=True):
    """Seconds: the pause in which people read a result before the page goes on, how often a full queue is asked
    again, how long an unwatched series of a page lasts, and how long one that is over stays in memory."""

    pause_s: float = 1.0
    again_s: float = 1.0
    abandon_s: float = 12.0
    linger_s: float = 30.0


class Repeater:
    """All series in memory; one at a time for each visitor of a page."""

    def __init__(self, hub: Hub, pace: Pace | None = None, *, clock: MonotonicNs = monotonic_ns) -> None:
        self._hub = hub
        self._pace = pace or Pace()
        self._clock = clock
        self._all: dict[str, _Repeated] = {}

    def start(self, spec: RaceSpec, races: int, *, owner: str | None = None, ticket: str | None = None) -> Run:
        """Begin a series of ``races`` and return its first race. ``owner`` and ``ticket`` as in ``Hub.start``.

        Raises:
            Busy: as ``Hub.start`` does.
        """
        self._sweep()
        one = _Repeated(self._hub, self._pace, self._clock, spec, races, owner)
        run = one.next_race(ticket)
        if run.meta.series != one.id:
            # the same click twice
            return run
        self.make_way(owner, run)
        self._all[one.id] = one
        one.task = asyncio.create_task(one.go_on(), name=f"series {one.id}")
        return run

    def get(self, series: str | None) -> Series | None:
        """The series as it stands, None when it is not in memory (any more)."""
        found = self._all.get(series or "")
        return None if found is None else found.read()

    def seen(self, series: str) -> None:
        """Somebody asked for it: a page between two races is no empty room."""
        if series in self._all:
            self._all[series].seen_ns = self._clock()

    def stop(self, series: str | None) -> bool:
        """Stop the race that runs, and start no more. False when there is no such series in memory."""
        found = self._all.get(series or "")
        if found is not None:
            found.stop()
        return found is not None

    def make_way(self, owner: str | None, run: Run) -> None:
        """``run`` is what this visitor wants now: their series that it does not belong to end."""
        for one in self._all.values():
            if owner is not None and one.owner == owner and one.id != run.meta.series and one.status == "running":
                one.stop()

    async def close(self) -> None:
        """Start no more; wait until that is so. The hub ends the races."""
        tasks = [one.task for one in self._all.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _sweep(self) -> None:
        """Forget series that are over; the store has their races."""
        for series, one in list(self._all.items()):
            if one.ended_ns is not None and ms_between(one.ended_ns, self._clock()) > 1000 * self._pace.linger_s:
                del self._all[series]


class _Repeated:
    """One series in memory."""

    def __init__(self, hub: Hub, pace: Pace, clock: MonotonicNs, spec: RaceSpec, races: int, owner: str | None) -> None:
        self.id = new_id()
        self.owner = owner
        self.asked: Asked = asked_of(spec, races)
        self.status: SeriesStatus = "running"
        self.seen_ns = clock()
        self.ended_ns: int | None = None
        self.task: asyncio.Task[None] | None = None
        self._hub = hub
        self._pace = pace
        self._clock = clock
        self._spec = spec
        self._over: list[RaceSummary] = []
        self._run: Run | None = None
        self._read: Series | None = None

    def next_race(self, ticket: str | None = None) -> Run:
        """Start the next race, or wait with it in the queue.

        Raises:
            Busy: the queue is full, or the app is about to stop.
        """
        number = len(self._over) + 1
        spec = structs.replace(self._spec, first=who_goes_first(self._spec.first, number))
        place = (self.id, number, self.asked.races)
        run = self._hub.start(spec, owner=self.owner, ticket=ticket, place=place, seen_ns=self.seen_ns)
        self._run, self._read = run, None
        run.series = self.read
        return run

    def read(self) -> Series:
        """The series now. Whoever asks first takes in the race that has just ended."""
        run = self._run
        if run is not None and run.log.closed:
            self._over.append(run.summary())
            self.seen_ns = max(self.seen_ns, run.last_seen_ns())
            self._run = self._read = None
            if self.status == "running":
                self._end(ended_as(self._over, self.asked.races))
        if self._read is None:
            running = None if self._run is None else self._run.meta.id
            self._read = reading(self.id, self.asked, self._over, status=self.status, running=running)
        return self._read

    def stop(self) -> None:
        """End it here."""
        self.read()
        self._end("stopped")
        if self._run is not None:
            self._hub.stop(self._run.meta.id)

    def _end(self, status: SeriesStatus | None) -> None:
        if status is not None and self.status == "running":
            self.status, self.ended_ns, self._read = status, self._clock(), None

    async def go_on(self) -> None:
        """From the first race to the last."""
        try:
            while True:
                await self._over_with(self._run)
                if not self.read().live or not await self._begin_next():
                    return
        except asyncio.CancelledError:
            self._end("interrupted")
            raise
        except Exception:  # noqa: BLE001  # a fault of ours must not leave a series that never ends
            _log.exception("series failed unexpectedly", series=self.id)
            self.stop()
        finally:
            self._end("interrupted" if self._hub.closing else "stopped")

    async def _over_with(self, run: Run | None) -> None:
        while run is not None and await run.log.beyond(run.log.head):
            pass

    async def _begin_next(self) -> bool:
        """After the pause, and as soon as the queue has a place; False when it is not to be."""
        if self.owner is not None:
            await anyio.sleep(self._pace.pause_s)
        while self.status == "running" and not self._hub.closing:
            if self.owner is not None and ms_between(self.seen_ns, self._clock()) > 1000 * self._pace.abandon_s:
                self._end("stopped")
                return False
            try:
                self.next_race()
            except Busy:
                await anyio.sleep(self._pace.again_s)
            else:
                return True
        return False
