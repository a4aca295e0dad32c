"""From settings to a running app: in front of servers that run already, or of a pair that we start ourselves."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping

import anyio
import typer

from app.errors import SettingsError
from app.main import Background, create_app, make_lanes, make_services
from app.ops.engines import cache_folder
from app.ops.profiles import Profile
from app.ops.supervisor import Pair
from app.race.endpoint import Endpoint, parse_endpoint
from app.race.fairness import scheduling_differs
from app.race.lane import LaneServer
from app.race.types import LANES, EngineProgress, LaneName, Setting
from app.race.warm_up import warm_up
from app.server import bind, configure_logs, serve_until_signal
from app.services import Services
from app.settings import Server, Settings


def serve(settings: Settings, server: Server) -> None:
    """Page and API in front of the two configured servers.

    Raises:
        SettingsError: a server is not configured, or something else is wrong before the start.
    """
    endpoints = settings.endpoints()
    configure_logs()
    taken = bind(server)

    async def start() -> None:
        lanes = make_lanes(settings, endpoints, {})
        services = make_services(settings, lanes, None)
        await _run(services, server, taken)

    with taken:
        _until_the_end(start)


def up(settings: Settings, server: Server, profile: Profile) -> None:
    """Start and supervise the pair of ``profile``; the page is there at once and turns live when they are ready.

    Raises:
        SettingsError: something is wrong before the start.
    """
    configure_logs()
    taken = bind(server)

    async def start() -> None:
        pair = Pair(profile, cache_dir=cache_folder())
        endpoints: dict[LaneName, Endpoint] = {lane: parse_endpoint(lane, pair.base_url(lane)) for lane in LANES}
        methods: dict[LaneName, str] = {lane: method for lane in LANES if (method := pair.identity(lane).method)}
        lanes = make_lanes(settings, endpoints, methods)
        services = make_services(settings, lanes, pair, setting_of(profile))
        pair.warm_up = lambda lane, _: probe_and_warm_up(lanes[lane])
        await _run(services, server, taken, pair.run, lambda: _tell(pair))

    with taken:
        _until_the_end(start)


def setting_of(profile: Profile) -> Setting:
    """What is known of our own pair, whatever the race."""
    flags = (*profile.server.args, *profile.baseline.args)
    # vLLM's CPU backend runs without it whatever the method, so the lanes are equal there
    keeps_async = profile.needs.device != "cpu" and "--no-async-scheduling" not in flags
    return Setting(
        shared_device=profile.shared_device,
        same_host=True,
        scheduling_differs=scheduling_differs(profile.speculative.method, keeps_async),
    )


async def probe_and_warm_up(lane: LaneServer) -> None:
    """What the supervisor does with a server that has just come up."""
    await lane.probe()
    await warm_up(lane.lane, lane)


def _until_the_end(start: Background) -> None:
    try:
        anyio.run(start, backend_options={"use_uvloop": True})
    except BaseExceptionGroup as group:
        # trouble of our own making is one line, whatever task group it came through
        found, rest = group.split(SettingsError)
        if found is not None and rest is None:
            raise _first(found) from None
        raise


def _first(group: BaseExceptionGroup[SettingsError]) -> SettingsError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _run(services: Services, server: Server, taken: socket.socket, *background: Background) -> None:
    # before anything listens, so that a database that cannot be used is one clear line
    services.store.open()
    shown = f"[{server.host}]" if ":" in server.host else server.host
    typer.echo(
        f"Specrace: http://{shown}:{server.port}  (presenter token: {services.settings.presenter_token})", err=True
    )
    app = create_app(services, background=background)
    await serve_until_signal(app, taken, leaving=services.hub.leave)


async def _tell(pair: Pair) -> None:
    """Say on the terminal what the engines are doing, whenever that changes."""
    told: Mapping[LaneName, tuple[str, str]] = {}
    while True:
        now: dict[LaneName, EngineProgress] = {lane: pair.progress(lane) for lane in LANES}
        for lane, progress in now.items():
            if told.get(lane) != (progress.phase, progress.detail):
                line = (
                    f"{lane:>11}  {progress.phase.replace('_', ' '):<18} {progress.elapsed_s:5.0f} s  {progress.detail}"
                )
                typer.echo(line, err=True)
        told = {lane: (progress.phase, progress.detail) for lane, progress in now.items()}
        sys.stderr.flush()
        await anyio.sleep(0.5)
