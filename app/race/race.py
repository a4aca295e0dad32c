"""One race: two lanes that know nothing of each other, every happening appended to one sink.

A lane's failure is an event of that lane and never stops the other. Cancelling the race (shutdown) cancels both
lanes, and each upstream closes its connection, so that the servers stop generating (see ARCHITECTURE.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

import anyio
from msgspec import structs

from app.race.clock import MonotonicNs, monotonic_ns, ms_between
from app.race.events import ComparisonRead, Event, LaneFigures, RaceFinished, RaceMargin, RaceStarted
from app.race.racer import Racer, Runner
from app.race.types import (
    LANES,
    Caveat,
    Comparison,
    LaneName,
    LaneNumbers,
    LaneStatus,
    RaceSpec,
    RaceStatus,
    Setting,
)

READINGS_EVERY_S = 0.2
RATE_S = 3.0
"""How long a race may stay open for the question how close two tokens were."""


class Sink(Protocol):
    """Where events go, and where the scoreboard's readings come from (app.race.run.Run)."""

    def append(self, event: Event) -> None:
        """Take in one event."""
        ...

    def numbers(self, lane: LaneName, now_ms: float, *, ending: LaneStatus | None = None) -> LaneNumbers:
        """Figures of a lane; ``ending``: as they will be once it has ended so."""
        ...

    def comparison(self, now_ms: float) -> Comparison:
        """The pair's figures."""
        ...


class Race:
    """Runs one race to its end. ``run`` returns the status that it also appended as the last event."""

    def __init__(
        self,
        spec: RaceSpec,
        runners: Mapping[LaneName, Runner],
        sink: Sink,
        *,
        epoch_ns: int,
        clock: MonotonicNs = monotonic_ns,
    ) -> None:
        self._spec = spec
        self._lanes: dict[LaneName, Racer] = {name: Racer(self, name, runners[name]) for name in LANES}
        self._sink = sink
        self._epoch_ns = epoch_ns
        self._clock = clock
        self._order: tuple[LaneName, ...] = LANES if spec.first == LANES[0] else LANES[::-1]
        self._stopping = False
        self._asking = anyio.CancelScope()

    def at_ms(self, at_ns: int | None = None) -> float:
        """Race time of a stamp (default: now)."""
        return ms_between(self._epoch_ns, self._clock() if at_ns is None else at_ns)

    async def run(
        self, *, queue_ms: float, in_flight: int, conditions: tuple[Caveat, ...] = (), setting: Setting | None = None
    ) -> RaceStatus:
        """Race both lanes: "together" at once, "in_turn" one after the other; ``spec.first`` goes, or starts, first."""
        self._sink.append(
            RaceStarted(
                t_ms=self.at_ms(), queue_ms=queue_ms, in_flight=in_flight, conditions=conditions, setting=setting
            )
        )
        async with anyio.create_task_group() as ticking:
            ticking.start_soon(self._read_out)
            async with anyio.create_task_group() as before:
                for lane in self._lanes.values():
                    before.start_soon(partial(lane.read_counters, alone=in_flight == 1))
            await self._race()
            async with anyio.create_task_group() as after:
                for lane in self._lanes.values():
                    after.start_soon(lane.settle_counters)
                    after.start_soon(lane.settle_vocabulary)
            ticking.cancel_scope.cancel()
        if in_flight == 1:
            await self._rate_candidates()
        status = self._status()
        self._read_comparison()
        self._sink.append(RaceFinished(t_ms=self.at_ms(), status=status))
        return status

    def stop(self) -> None:
        """Stop both lanes; their tokens stay. Does nothing to a lane that has ended."""
        self._stopping = True
        self._asking.cancel()
        for lane in self._lanes.values():
            lane.scope.cancel()

    async def _race(self) -> None:
        if self._spec.schedule == "in_turn":
            for name in self._order:
                await self._lanes[name].run(self._spec)
            return
        async with anyio.create_task_group() as racing:
            for name in self._order:
                racing.start_soon(self._lanes[name].run, self._spec)

    async def _rate_candidates(self) -> None:
        """Where greedy answers part, ask the baseline's server how close the two tokens were. It is in no figure; a
        server that does not answer in time leaves a gap and nothing else."""
        index = self._sink.comparison(self.at_ms()).diverges_at_token
        base, spec = self._lanes["baseline"], self._lanes["speculative"]
        tokens = (None, None) if index is None else (base.token(index), spec.token(index))
        if index is None or tokens[0] is None or tokens[1] is None:
            return
        with self._asking:
            rated = await base.rate(index, (tokens[0], tokens[1]), RATE_S)
            if rated is not None:
                at = self.at_ms()
                self._sink.append(RaceMargin(t_ms=at, index=index, baseline=rated[0], speculative=rated[1]))

    def _status(self) -> RaceStatus:
        ends = [lane.status for lane in self._lanes.values()]
        if ends.count("finished") == 2:
            return "finished"
        if ends.count("finished") == 1:
            return "partial"
        return "stopped" if "stopped" in ends else "failed"

    async def _read_out(self) -> None:
        """Append readings of the scoreboard a few times a second, for scripts that fold nothing themselves."""
        seen: dict[LaneName, int] = {}
        while True:
            await anyio.sleep(READINGS_EVERY_S)
            moved = False
            for name, lane in self._lanes.items():
                if lane.status == "streaming" and lane.received != seen.get(name, 0):
                    seen[name], moved = lane.received, True
                    self._read_figures(name)
            if moved:
                self._read_comparison()

    def _read_figures(self, name: LaneName) -> None:
        now = self.at_ms()
        self._sink.append(LaneFigures(t_ms=now, lane=name, **structs.asdict(self._sink.numbers(name, now))))

    def _read_comparison(self) -> None:
        now = self.at_ms()
        self._sink.append(ComparisonRead(t_ms=now, **structs.asdict(self._sink.comparison(now))))

    def append(self, event: Event) -> None:
        """Hand an event of a lane to the sink."""
        self._sink.append(event)

    def numbers(self, name: LaneName, ending: LaneStatus | None = None) -> LaneNumbers:
        """Figures of a lane now."""
        return self._sink.numbers(name, self.at_ms(), ending=ending)

    @property
    def stopping(self) -> bool:
        """Whether somebody pressed Stop."""
        return self._stopping
