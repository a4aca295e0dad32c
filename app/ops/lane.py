"""One supervised server: start, follow, warm up, and start again when it ends. Knows nothing of the other lane.

    starting → loading_weights → compiling → warming_up → ready
        ▲            (a start that fails, or a crash)       │
        └──── restarting, back-off ◄────────────────────────┤
              failed, retried slowly ◄── several starts failed in a row

Cancelling ``run`` ends the server and all its descendants within the grace period.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import httpx2
import structlog
from msgspec import Struct

from app.ops.engines import Command
from app.ops.locks import port_is_free
from app.ops.logs import BootLog, LogFile
from app.ops.processes import GRACE_S, Kept, engine_environment, kept
from app.race.clock import MonotonicNs
from app.race.types import EnginePhase, EngineProgress, LaneName

log = structlog.get_logger(__name__)

WarmUp = Callable[[LaneName, str], Awaitable[None]]
"""Awaited with the lane and its base URL when its server is healthy; the lane is ``ready`` when it returns."""


class Patience(Struct, frozen=True, kw_only=True):
    """All waits of the supervision, in seconds. Tests make them short."""

    first_s: float = 1.0
    cap_s: float = 60.0
    slow_s: float = 60.0
    starts_before_failed: int = 3
    stable_s: float = 60.0
    health_every_s: float = 0.25
    health_timeout_s: float = 2.0
    warm_up_s: float = 180.0
    start_s: float = 3600.0
    grace_s: float = GRACE_S

    def back_off_s(self, failures: int) -> float:
        """1, 2, 4, … up to the cap, after so many ends in a row."""
        return min(self.first_s * 2.0 ** min(failures - 1, 20), self.cap_s)


class Site(Struct, frozen=True, kw_only=True):
    """Where a lane lives on this machine. ``hide`` maps folders to what is shown in their place."""

    lane: LaneName
    port: int
    log_path: Path
    hide: dict[str, str]
    path_folder: Path | None = None
    """Put first on PATH: vLLM calls tools of its own environment (ninja)."""

    @property
    def base_url(self) -> str:
        """The server's root, without /v1."""
        return f"http://127.0.0.1:{self.port}"


class _End(Struct, frozen=True):
    """How one life of the server ended. ``ready_s`` is None when it never became ready."""

    cause: str
    ready_s: float | None


class Supervised:
    """Keeps one server running. ``command`` is asked at every start; ``slot`` admits starts (one at a time on a
    shared GPU)."""

    def __init__(
        self,
        site: Site,
        *,
        command: Callable[[], Command],
        slot: anyio.Semaphore,
        warm_up: WarmUp | None,
        patience: Patience,
        clock: MonotonicNs,
    ) -> None:
        self.site = site
        self.warm_up = warm_up
        self.boot = BootLog(site.hide)
        self._command = command
        self._slot = slot
        self._patience = patience
        self._clock = clock
        self._began_ns = clock()
        self._ready_ns: int | None = None
        self._phase: EnginePhase = "stopped"
        self._detail = "not started"
        self._restarts = 0
        self._starting = False
        self._overdue = False
        self._holds_slot = False

    @property
    def progress(self) -> EngineProgress:
        """Where it stands now. ``elapsed_s`` counts from the first start or from the crash and stands still at
        ``ready``: then it says how long the start took."""
        following = self._starting and self._phase not in ("warming_up", "ready")
        stage = self.boot.stage
        return EngineProgress(
            phase=stage.phase if following else self._phase,
            detail=stage.words if following else self._detail,
            elapsed_s=((self._ready_ns or self._clock()) - self._began_ns) / 1e9,
            log_tail=self.boot.tail,
            restarts=self._restarts,
        )

    def begin(self) -> None:
        """The clock of ``elapsed_s`` starts now."""
        self._began_ns, self._ready_ns = self._clock(), None

    def note(self, phase: EnginePhase, detail: str) -> None:
        """Set-up goes on outside (installing, weights), or it all ended."""
        self.show(detail)
        self._phase, self._detail = phase, self.boot.presentable(detail) or self._detail

    def show(self, line: str) -> None:
        """A line that set-up printed, for the tail."""
        self.boot.feed(line)

    async def run(self) -> None:
        """Until cancelled. Never raises because of the server."""
        failures = 0
        while True:
            end = await self._life()
            if end.ready_s is not None:
                self.begin()
            failures = 1 if end.ready_s is not None and end.ready_s >= self._patience.stable_s else failures + 1
            hopeless = end.ready_s is None and failures >= self._patience.starts_before_failed
            pause_s = self._patience.slow_s if hopeless else self._patience.back_off_s(failures)
            what = "it stopped" if end.ready_s is not None else f"start {failures} failed"
            self._set("failed" if hopeless else "restarting", f"{what}: {end.cause}. Next try in {pause_s:.0f} s")
            await anyio.sleep(pause_s)
            self._restarts += 1

    async def _life(self) -> _End:
        """One start, until the server's end. The slot is held from the start until the server is up or gone."""
        self._set("starting", "starting" if self._slot.value else "waits until the other server is up")
        await self._slot.acquire()
        self._holds_slot = True
        try:
            if not port_is_free(self.site.port):
                reason = f"port {self.site.port} is in use. Stop what listens there, or change it in the profile"
                return _End(reason, None)
            return await self._start_and_follow()
        except OSError as error:  # no memory for a process, no disk for its log: this lane's trouble alone
            return _End(f"it could not be started: {error.strerror or error}", None)
        finally:
            self._starting = False
            self._release_slot()

    async def _start_and_follow(self) -> _End:
        self.boot = BootLog(self.site.hide)
        self._ready_ns, self._overdue, self._starting = None, False, True
        command, file = self._command(), LogFile(self.site.log_path)
        log.info("engine starts", lane=self.site.lane, port=self.site.port, restarts=self._restarts)
        try:
            async with kept(
                command.argv, env=self._environment(command), cpus=command.cpus, grace_s=self._patience.grace_s
            ) as running:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._become_ready, running)
                    async for line in running.lines():
                        self._take(line, file)
                    tasks.cancel_scope.cancel()
                code = await running.wait()
        finally:
            file.close()
        cause = f"not up after {self._patience.start_s:.0f} s" if self._overdue else self.boot.cause(code)
        ready_s = None if self._ready_ns is None else (self._clock() - self._ready_ns) / 1e9
        return _End(cause, ready_s)

    def _environment(self, command: Command) -> dict[str, str]:
        env = engine_environment(command.env)
        if self.site.path_folder is not None:
            env["PATH"] = f"{self.site.path_folder}{os.pathsep}{env.get('PATH', os.defpath)}"
        return env

    def _take(self, line: str, file: LogFile) -> None:
        before = self.boot.stage
        if self.boot.feed(line):
            file.write(line)
        if self._starting and self.boot.stage != before:
            log.info("engine", lane=self.site.lane, phase=self.boot.stage.phase, detail=self.boot.stage.words)

    async def _become_ready(self, running: Kept) -> None:
        with anyio.move_on_after(self._patience.start_s) as limit:
            await self._healthy()
        if limit.cancelled_caught:
            self._overdue = True
            await running.stop(self._patience.grace_s)
            return
        self._release_slot()
        self._starting = False
        self._set("warming_up", "warming up: the first requests of a server are slower than all later ones")
        trouble = await self._warmed_up()
        self._ready_ns = self._clock()
        self._set("ready", "ready" if trouble is None else f"ready, but the warm-up failed: {trouble}")

    async def _healthy(self) -> None:
        """Return when /health answers 200. Until then the port refuses connections."""
        async with httpx2.AsyncClient(trust_env=False, timeout=self._patience.health_timeout_s) as client:
            while True:
                with contextlib.suppress(httpx2.HTTPError):
                    if (await client.get(f"{self.site.base_url}/health")).status_code == 200:
                        return
                await anyio.sleep(self._patience.health_every_s)

    async def _warmed_up(self) -> str | None:
        """Await the app's hook. A failed warm-up costs the first race some speed, never the lane; returns why."""
        if self.warm_up is None:
            return None
        try:
            with anyio.fail_after(self._patience.warm_up_s):
                await self.warm_up(self.site.lane, self.site.base_url)
        except TimeoutError:
            return f"it took longer than {self._patience.warm_up_s:.0f} s"
        except Exception as error:  # noqa: BLE001 (whatever the app's own code raises)
            log.warning("warm-up failed", lane=self.site.lane, error=str(error))
            return f"{type(error).__name__}: {error}"
        return None

    def _release_slot(self) -> None:
        if self._holds_slot:
            self._holds_slot = False
            self._slot.release()

    def _set(self, phase: EnginePhase, detail: str) -> None:
        if (phase, detail) != (self._phase, self._detail):
            level = log.warning if phase in ("failed", "restarting") else log.info
            level("engine", lane=self.site.lane, phase=phase, detail=detail)
        self._phase, self._detail = phase, detail
