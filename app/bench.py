"""``specrace bench``: the same requests several times through both servers, without a page; the result as a table."""

from __future__ import annotations

import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import anyio
import typer
from msgspec import structs

from app.bench_plan import Asked, plan_of, printable
from app.errors import SettingsError
from app.main import known_of, make_lanes
from app.race.endpoint import CONNECTIONS, Endpoint
from app.race.lane import LaneServer
from app.race.repeats import Lap
from app.race.report import Head, Report, Row, as_csv, as_json, as_markdown, lap_line, row
from app.race.sweep import Item, Plan, sweep
from app.race.types import LANES, LaneName
from app.race.warm_up import warm_up
from app.server import configure_logs
from app.settings import Settings

DONE, FAILED, INTERRUPTED = 0, 1, 130


def bench(settings: Settings, asked: Asked) -> int:
    """Run it; the exit status: 0, 1 when a server failed, 130 when it was interrupted. The result is written anyway.

    Raises:
        SettingsError: something is wrong before the first request.
    """
    plan = plan_of(settings, asked)
    endpoints = settings.endpoints()
    for option, target in (("--json", asked.json), ("--csv", asked.csv)):
        _check_target(option, target)
    if asked.json is not None and asked.json == asked.csv:
        raise SettingsError("--csv", "--json goes there already", "Give another file to one of them")
    configure_logs()
    run = Bench(settings, endpoints, plan, asked)
    anyio.run(run.run, backend_options={"use_uvloop": True})
    if run.report is not None:
        _write(run.report, asked)
    return run.status


class Bench:
    """One run, and what it has so far: ``report`` is None when it did not get to the first race."""

    def __init__(self, settings: Settings, endpoints: dict[LaneName, Endpoint], plan: Plan, asked: Asked) -> None:
        self.status = DONE
        self.report: Report | None = None
        self._settings = settings
        self._endpoints = endpoints
        self._plan = plan
        self._asked = asked
        self._laps: dict[tuple[int, str], list[Lap]] = {}
        self._ended: str | None = None

    async def run(self) -> None:
        """To the end, or until Ctrl-C."""
        connections = max(CONNECTIONS, *self._plan.loads)
        servers = make_lanes(self._settings, self._endpoints, {}, connections=connections)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._until_signal, group.cancel_scope)
                await self._measure(servers)
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                for server in servers.values():
                    await server.upstream.close()
        if self.report is not None:
            self.report = structs.replace(self.report, rows=self._rows(), ended=self._ended)

    async def _until_signal(self, scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                self._ended, self.status = "interrupted", INTERRUPTED
                say("interrupted: here is what there is")
                scope.cancel()

    async def _measure(self, servers: dict[LaneName, LaneServer]) -> None:
        for lane, server in servers.items():
            state = await server.probe()
            if state.status != "ready":
                self.status = FAILED
                say(f"{lane}: {state.detail or 'the server is not ready'}")
                return
        for lane, server in servers.items():
            if self._asked.warm_up:
                await warm_up(lane, server)
        self.report = Report(head=self._head(servers), rows=())
        ended = await sweep(self._plan, servers, setting=known_of(servers, None), tell=self._told)
        if ended is not None:
            self._ended = ended
            say(ended)

    def _told(self, item: Item, load: int, lap: Lap) -> None:
        self._laps.setdefault((load, item.name), []).append(lap)
        if not lap.finished:
            self.status = FAILED
        say(lap_line(item.name, load, lap, asked=self._plan.repeats))

    def _rows(self) -> tuple[Row, ...]:
        asked = self._plan.repeats
        return tuple(row(name, load, laps, asked=asked) for (load, name), laps in self._laps.items())

    def _head(self, servers: dict[LaneName, LaneServer]) -> Head:
        drafting = servers["speculative"].identity
        return Head(
            at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            models={lane: servers[lane].identity.model for lane in LANES},
            versions={lane: servers[lane].state.version for lane in LANES},
            method=drafting.method,
            num_speculative_tokens=drafting.num_speculative_tokens,
            speculating=servers["speculative"].speculating,
            schedule=self._plan.schedule,
            repeats=self._plan.repeats,
            warm_up=self._asked.warm_up,
            fresh_cache=self._plan.fresh_cache,
        )


def say(text: str) -> None:
    """Progress, on stderr: standard output is for the result alone."""
    typer.echo(f"specrace: {text}", err=True)


# --- where it goes ----------------------------------------------------------------------------------------


def _check_target(option: str, target: str | None) -> None:
    """Raises SettingsError now, and not after all the work, when a file cannot be written."""
    if target in (None, "-"):
        return
    path = Path(target)
    try:
        # a link to nowhere stays a link
        file = path.resolve()
        new = not file.exists()
        with file.open("ab"):
            pass
        if new:
            # a run that measures nothing leaves nothing behind
            file.unlink()
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else "its links go in a circle"
        reason = f"{printable(path.name)} cannot be written ({why})"
        raise SettingsError(option, reason, "Give a file that can be written") from None


def _write(report: Report, asked: Asked) -> None:
    """The table goes to standard output unless one of the others does."""
    bodies = {asked.json: as_json, asked.csv: as_csv}
    for target, body in bodies.items():
        if target is not None and target != "-":
            Path(target).write_bytes(body(report))
    sys.stdout.buffer.write(bodies["-"](report) if "-" in bodies else as_markdown(report).encode())
    sys.stdout.buffer.flush()
