"""What both servers are doing, seen before the click: probes between races, engine progress where we run the engines.

Nobody asks the servers for anything while a race is on them: reading 50 kB of /metrics costs a small engine a few
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import anyio
from msgspec import structs

from app.race.lane import LaneServer
from app.race.types import LANES, EndpointState, EngineProgress, LaneName

PROBE_EVERY_S = 3.0
_UNREACHABLE = ("connection_refused", "connect_timeout", "tls")


class Engines(Protocol):
    """Who runs the engines (app.ops.supervisor.Pair), as far as telemetry needs it."""

    def progress(self, lane: LaneName) -> EngineProgress:
        """What the engine of a lane is doing."""
        ...


class Telemetry:
    """State of both endpoints, kept fresh by ``watch``."""

    def __init__(
        self, lanes: Mapping[LaneName, LaneServer], *, busy: Callable[[], bool], engines: Engines | None = None
    ) -> None:
        self._lanes = lanes
        self._busy = busy
        self._engines = engines
        self._probed = anyio.Event()

    async def watch(self) -> None:
        """Probe both servers every few seconds while no race is on them; runs for the life of the app."""
        while True:
            if not self._busy():
                await self.probe()
            await anyio.sleep(PROBE_EVERY_S)

    async def probe(self) -> None:
        """Probe both servers now, at the same time. Engines that are not up yet are not asked."""
        async with anyio.create_task_group() as group:
            for lane in LANES:
                if self._engines is None or self._engines.progress(lane).phase in ("ready", "warming_up"):
                    group.start_soon(self._lanes[lane].probe)
        self._probed.set()

    async def states(self) -> dict[LaneName, EndpointState]:
        """Both states; waits for the first probe, which takes a few seconds at most."""
        with anyio.move_on_after(5):
            await self._probed.wait()
        return {lane: self.state(lane) for lane in LANES}

    def state(self, lane: LaneName) -> EndpointState:
        """One state, without waiting."""
        state = self._lanes[lane].state
        if self._engines is None:
            return state
        progress = self._engines.progress(lane)
        if progress.phase == "ready":
            return structs.replace(state, engine=progress)
        status = "down" if progress.phase in ("failed", "stopped") else "starting"
        return structs.replace(state, status=status, detail=progress.detail, error=None, engine=progress)

    async def unreachable(self) -> bool:
        """Whether a race makes no sense: neither server can even be connected to. Looks again before saying so."""
        if self._engines is not None:
            return all(self.state(lane).status != "ready" for lane in LANES)
        states = await self.states()
        if not all(_refuses(state) for state in states.values()):
            return False
        if not self._busy():
            await self.probe()
        return all(_refuses(self.state(lane)) for lane in LANES)


def _refuses(state: EndpointState) -> bool:
    return state.status == "down" and state.error is not None and state.error.kind in _UNREACHABLE
