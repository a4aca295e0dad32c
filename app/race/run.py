"""One race in memory, and the one door into it: every event is folded, logged and kept here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

from app.race.clock import MonotonicNs, monotonic_ns, ms_between
from app.race.events import Event, RaceFinished
from app.race.log import Log
from app.race.race import Race
from app.race.scoreboard import Scoreboard
from app.race.series import Series
from app.race.summary import RaceMeta, RaceSummary, summarize
from app.race.types import Comparison, LaneName, LaneNumbers, LaneStatus


class Keeper(Protocol):
    """Who keeps races for good (app.race.store.Store)."""

    def begin(self, meta: RaceMeta) -> None:
        """A race exists."""
        ...

    def keep(self, race_id: str, event_id: int, event: Event) -> None:
        """An event happened."""
        ...

    def finish(self, summary: RaceSummary) -> None:
        """A race is over."""
        ...


class Run:
    """One race in memory: its log, the fold at the head of the log, and who watches."""

    def __init__(self, meta: RaceMeta, keeper: Keeper | None, *, clock: MonotonicNs = monotonic_ns) -> None:
        self.meta = meta
        self.log = Log()
        self.board = Scoreboard()
        self.viewers = 0
        self.epoch_ns = clock()
        self.left_ns = self.epoch_ns
        self.seen_ns = self.epoch_ns
        self.race: Race | None = None
        self.task: asyncio.Task[None] | None = None
        self.owner: str | None = None
        self.ended = False
        self.series: Callable[[], Series] | None = None
        """Reads the series that the race belongs to, as it stands."""
        self._keeper = keeper
        self._clock = clock

    def now_ms(self) -> float:
        """Race time now; stands still once the race is over."""
        return self.board.now_ms if self.log.closed else ms_between(self.epoch_ns, self._clock())

    def append(self, event: Event) -> None:
        """The one door into a race: fold, log, keep. Nothing gets in after the end."""
        if self.log.closed:
            return
        self.board.apply(event)
        event_id = self.log.append(event)
        if self._keeper is not None:
            self._keeper.keep(self.meta.id, event_id, event)
        if isinstance(event, RaceFinished):
            if self._keeper is not None:
                self._keeper.finish(self.summary())
            self.log.close()

    def numbers(self, lane: LaneName, now_ms: float, *, ending: LaneStatus | None = None) -> LaneNumbers:
        """Figures of a lane (app.race.race.Sink)."""
        return self.board.numbers(lane, now_ms, ending=ending)

    def comparison(self, now_ms: float) -> Comparison:
        """The pair's figures (app.race.race.Sink)."""
        return self.board.comparison(now_ms, greedy=self.meta.spec.sampling.temperature == 0)

    def summary(self) -> RaceSummary:
        """The race as JSON, now."""
        return summarize(self.meta, self.board, self.now_ms())

    def read_series(self) -> Series | None:
        """The series that the race belongs to, as it stands."""
        return None if self.series is None else self.series()

    @property
    def is_race(self) -> bool:
        """Whether this is a race of ours, and no replay."""
        return self.meta.origin is None and self._keeper is not None

    @contextmanager
    def watched(self) -> Generator[None]:
        """Count a viewer for as long as the block runs."""
        self.viewers += 1
        try:
            yield
        finally:
            self.viewers -= 1
            self.left_ns = self.seen_ns = self._clock()

    def last_seen_ns(self) -> int:
        """When somebody last watched; a race that began in front of nobody counts from its beginning."""
        return self._clock() if self.viewers else self.seen_ns
