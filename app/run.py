"""From settings to a running app: in front of servers that run already, or of a pair that we start ourselves."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping

import anyio
import structlog
import typer

from app.errors import SettingsError
from app.main import Background, create_app, make_lanes, make_services
from app.ops.engines import cache_folder
from app.ops.profiles import Profile
from app.ops.supervisor import Pair
from app.race.endpoint import Endpoint, parse_endpoint
from app.race.failures import UpstreamError
from app.race.lane import LaneServer
from app.race.types import LANES, Caveat, Chunk, EngineProgress, LaneName, RaceSpec, Sampling
from app.server import bind, configure_logs, serve_until_signal
from app.services import Services
from app.settings import Server, Settings

_log = structlog.get_logger()
WARM_UP = RaceSpec(
    workload=None,
    prompt="One, two, three, one, two, three, one, two,",
    system=None,
    sampling=Sampling(temperature=0.0, top_p=1.0, seed=0, max_tokens=16, ignore_eos=True),
    schedule="together",
)


def serve(settings: Settings, server: Server) -> None:
    """Page and API in front of the two configured servers.

    Raises:
        SettingsError: a server is not configured, or something else is wrong before the start.
    """
    endpoints: dict[LaneName, Endpoint] = {}
    for lane in LANES:
        endpoint = settings.endpoint(lane)
        if endpoint is None:
            raise SettingsError(
                f"--{lane}", "no server is given for this lane", f"Give --{lane} URL, or run: specrace up"
            )
        endpoints[lane] = endpoint
    configure_logs()
    taken = bind(server)

    async def start() -> None:
        lanes = make_lanes(settings, endpoints, {})
        services = make_services(settings, lanes, None, ())
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
        services = make_services(settings, lanes, pair, conditions_of(profile))
        pair.warm_up = lambda lane, _: warm_up(lanes[lane])
        await _run(services, server, taken, pair.run, lambda: _tell(pair))

    with taken:
        _until_the_end(start)


def conditions_of(profile: Profile) -> tuple[Caveat, ...]:
    """Caveats of every race with this pair."""
    loses_async = profile.speculative.method in ("ngram", "suffix", "medusa")
    keeps_async = not any("--no-async-scheduling" in text for text in (*profile.server.args, *profile.baseline.args))
    return ("scheduling_differs",) if loses_async and keeps_async else ()


async def warm_up(lane: LaneServer) -> None:
    """One short answer that counts nowhere, so that no race pays for a first kernel or a cold cache."""
    await lane.probe()

    def drop(_: Chunk) -> None:
        """The answer is not looked at."""

    try:
        await lane.run(WARM_UP, await lane.model(), lambda _at, _again: None, drop)
    except UpstreamError as error:
        _log.warning("warm-up failed", lane=lane.lane, reason=error.raw)


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
