"""The pair: makes what the profile needs, starts both servers and keeps them running until cancelled.

    Pair.run ──► can it run here? ──► install ──► weights ──► lane.py (baseline)     own task, own keeper, own log
                                                         └──► lane.py (speculative)  one's crash never touches the other

Whoever cancels ``run`` (the app's lifespan) waits until both servers and all their descendants have ended: about the
grace period, five seconds at most. When the app dies instead, keeper.py ends them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import structlog

from app.errors import EngineError
from app.ops.engines import Command, cannot_run, server_command
from app.ops.install import environment_dir, hidden, install, prepare_weights
from app.ops.lane import Patience, Site, Supervised, WarmUp
from app.ops.locks import Port
from app.ops.machine import Machine, look
from app.ops.profiles import Profile
from app.ops.runner import Audience
from app.race.clock import MonotonicNs, monotonic_ns
from app.race.types import LANES, EnginePhase, EngineProgress, LaneIdentity, LaneName

log = structlog.get_logger(__name__)

__all__ = ["Pair", "Patience", "WarmUp"]


class Pair:
    """Two supervised servers out of one profile. Make it inside a running event loop; run ``run`` as one task.

    ``warm_up`` may be set until ``run`` starts. Ports are taken at once and stay the same for the pair's life: the
    profile's own, or the next free ones.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        cache_dir: Path,
        clock: MonotonicNs = monotonic_ns,
        warm_up: WarmUp | None = None,
        patience: Patience | None = None,
        machine: Machine | None = None,
    ) -> None:
        """Raises EngineError when no port is free."""
        self.profile = profile
        self._cache_dir = cache_dir
        self._patience = patience or Patience()
        self._machine = machine or look()
        self._ports = _take_ports(profile, cache_dir / "locks")
        # On a shared GPU a server counts what the other one allocates meanwhile as its own: one start at a time.
        slot = anyio.Semaphore(1 if profile.boot == "in_turn" else len(LANES))
        self._lanes = {
            lane: Supervised(
                self._site(lane),
                command=partial(self._command, lane),
                slot=slot,
                warm_up=warm_up,
                patience=self._patience,
                clock=clock,
            )
            for lane in LANES
        }

    @property
    def warm_up(self) -> WarmUp | None:
        """Awaited for each lane whenever its server came up, before the lane counts as ready."""
        return self._lanes["baseline"].warm_up

    @warm_up.setter
    def warm_up(self, hook: WarmUp | None) -> None:
        for supervised in self._lanes.values():
            supervised.warm_up = hook

    @property
    def hardware(self) -> str:
        """This machine in words: "2 vCPU AMD EPYC, 24 GB, no GPU"."""
        return self._machine.words

    @property
    def vllm_version(self) -> str | None:
        """As the servers printed it; None until one did."""
        return next((lane.boot.version for lane in self._lanes.values() if lane.boot.version), None)

    @property
    def cannot_run(self) -> str | None:
        """Why the profile cannot run on this machine, and what would help; None when it can."""
        return cannot_run(self.profile, self._machine, self._cache_dir)

    def progress(self, lane: LaneName) -> EngineProgress:
        """What a lane's server is doing now. Cheap; holds no path of this machine."""
        return self._lanes[lane].progress

    def base_url(self, lane: LaneName) -> str:
        """The server's root, without /v1; answers only when the lane is past ``compiling``."""
        return self._lanes[lane].site.base_url

    def identity(self, lane: LaneName) -> LaneIdentity:
        """Model, method and k of a lane, known before its server answers."""
        return self.profile.identity(lane)

    def log_path(self, lane: LaneName) -> Path:
        """The file with the server's output, for the terminal; never for the page."""
        return self._lanes[lane].site.log_path

    async def run(self) -> None:
        """Install, prepare, start, supervise: until cancelled. Trouble becomes a phase, never an exception."""
        for supervised in self._lanes.values():
            supervised.begin()
        try:
            await self._set_up()
            async with anyio.create_task_group() as tasks:
                for supervised in self._lanes.values():
                    tasks.start_soon(supervised.run)
        finally:
            self._note_both("stopped", "stopped")
            for port in self._ports.values():
                port.release()

    async def _set_up(self) -> None:
        """Until environment and weights are whole. A network that is down now may be up in a minute."""
        failures = 0
        while True:
            if (reason := self.cannot_run) is None:
                try:
                    await install(self.profile, self._cache_dir, self._audience("installing"))
                    await prepare_weights(self.profile, self._cache_dir, self._audience("preparing_weights"))
                except EngineError as error:
                    failures += 1
                    pause_s = self._patience.back_off_s(failures)
                    self._note_both("failed", f"{error} (next try in {pause_s:.0f} s)")
                else:
                    return
            else:
                pause_s = self._patience.slow_s
                self._note_both("failed", f"cannot run on this machine: {reason}")
            await anyio.sleep(pause_s)
            self._machine = await anyio.to_thread.run_sync(look)

    def _audience(self, phase: EnginePhase) -> Audience:
        return Audience(step=partial(self._note_both, phase), line=self._show_both)

    def _note_both(self, phase: EnginePhase, detail: str) -> None:
        level = log.warning if phase == "failed" else log.info
        level("engines", phase=phase, detail=detail)
        for supervised in self._lanes.values():
            supervised.note(phase, detail)

    def _show_both(self, line: str) -> None:
        for supervised in self._lanes.values():
            supervised.show(line)

    def _command(self, lane: LaneName) -> Command:
        port = self._ports[lane].number
        return server_command(self.profile, lane, port=port, cache_dir=self._cache_dir, allowed_cpus=self._machine.cpus)

    def _site(self, lane: LaneName) -> Site:
        port = self._ports[lane].number
        environment = environment_dir(self.profile, self._cache_dir)
        return Site(
            lane=lane,
            port=port,
            log_path=self._cache_dir / "logs" / f"{self.profile.name}-{lane}-{port}.log",
            hide=hidden(self._cache_dir),
            path_folder=environment and environment / "bin",
        )


def _take_ports(profile: Profile, folder: Path) -> dict[LaneName, Port]:
    """Both or none."""
    first = Port(profile.baseline.port, folder)
    try:
        return {"baseline": first, "speculative": Port(profile.speculative.port, folder)}
    except EngineError:
        first.release()
        raise
