"""The app, put together: create_app and its lifespan. No logic in here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import msgspec
from fastapi import FastAPI, Request
from msgspec import structs
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from app import __version__
from app.errors import Busy, SpecraceError
from app.ops.preflight import Preflight
from app.ops.telemetry import Engines, Telemetry
from app.race.endpoint import CONNECTIONS, Endpoint
from app.race.fairness import scheduling_differs
from app.race.hub import Hub, Limits
from app.race.lane import LaneServer
from app.race.repeater import Repeater
from app.race.replay import read_recording
from app.race.store import Store
from app.race.types import LANES, LaneName, Setting
from app.race.upstream import Timeouts, Upstream
from app.race.workloads import load_workloads
from app.services import Services
from app.settings import HOME, Settings
from app.web import api, checks, health, pages, races, series
from app.web.render import Renderer
from app.web.security import Guard
from app.web.sse import Feeds

RECORDINGS = HOME / "deploy" / "recordings"


def make_lanes(
    settings: Settings,
    endpoints: Mapping[LaneName, Endpoint],
    methods: Mapping[LaneName, str],
    *,
    connections: int = CONNECTIONS,
) -> dict[LaneName, LaneServer]:
    """A LaneServer for each lane; ``methods`` names how a lane drafts, where that is known."""
    timeouts = Timeouts(
        connect_s=settings.connect_timeout, first_token_s=settings.first_token_timeout, stall_s=settings.stall_timeout
    )
    ways = {lane: Upstream(endpoints[lane], timeouts, connections=connections) for lane in LANES}
    return {lane: LaneServer(lane, ways[lane], method=methods.get(lane)) for lane in LANES}


def known_of(lanes: Mapping[LaneName, LaneServer], setting: Setting | None) -> Callable[[], Setting]:
    """What is known of the pair whenever a race begins: ``setting``, and whether the servers are warm."""
    same_host = len({lane.upstream.endpoint.host for lane in lanes.values()}) == 1

    def known() -> Setting:
        base, spec = lanes["baseline"], lanes["speculative"]
        differ = False if spec.speculating is False else scheduling_differs(spec.identity.method, None)
        return structs.replace(
            setting or Setting(same_host=same_host, scheduling_differs=differ),
            baseline_warm=base.warm,
            speculative_warm=spec.warm,
        )

    return known


def version_of(lanes: Mapping[LaneName, LaneServer]) -> str | None:
    """The version of both servers in words, None when neither tells it."""
    told = {lane: lanes[lane].state.version for lane in LANES}
    if len(set(told.values())) == 1:
        return told["baseline"]
    return ", ".join(f"{lane} {version or 'not told'}" for lane, version in told.items())


def make_services(
    settings: Settings, lanes: Mapping[LaneName, LaneServer], engines: Engines | None, setting: Setting | None = None
) -> Services:
    """Everything with a life, not started yet. ``setting`` is what is known of our own pair, None of foreign servers.

    Raises:
        SettingsError: workloads or recordings cannot be read.
    """

    store = Store(settings.database)
    limits = Limits(races_at_once=settings.races_at_once, queue_limit=settings.queue_limit)
    hub = Hub(lanes, store, limits, known_of(lanes, setting), lambda: version_of(lanes))
    renderer = Renderer()
    recordings = {
        race.meta.spec.workload: race
        for path in sorted(RECORDINGS.glob("*.jsonl.gz"))
        if (race := read_recording(path))
    }
    workloads = load_workloads(settings.workloads)
    return Services(
        settings=settings,
        workloads=workloads,
        recordings={name: race for name, race in recordings.items() if name is not None},
        lanes=lanes,
        telemetry=Telemetry(lanes, busy=lambda: hub.racing, engines=engines),
        store=store,
        hub=hub,
        repeater=Repeater(hub),
        preflight=Preflight(lanes, workloads, hub, equal_scheduling=_equal_scheduling(setting)),
        renderer=renderer,
        feeds=Feeds(renderer),
    )


def _equal_scheduling(setting: Setting | None) -> bool | None:
    return None if setting is None or setting.scheduling_differs is None else not setting.scheduling_differs


Background = Callable[[], Any]
"""An async function without arguments that runs as long as the app (the supervisor of the engines)."""


def create_app(services: Services, *, background: tuple[Background, ...] = ()) -> FastAPI:
    """The ASGI app around ``services``."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[dict[str, Any]]:
        services.store.open()
        async with anyio.create_task_group() as group:
            for work in (services.telemetry.watch, services.hub.watch, *background):
                group.start_soon(work)
            yield {"services": services}
            await services.preflight.close()
            await services.repeater.close()
            await services.hub.close()
            group.cancel_scope.cancel()
        for lane in services.lanes.values():
            await lane.upstream.close()
        services.store.close()

    app = FastAPI(
        title="Specrace", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.mount("/static", CachedFiles(directory=HOME / "static"), name="static")
    for room in (health, series, api, checks, races, pages):
        app.include_router(room.router)
    app.add_exception_handler(SpecraceError, _specrace_error)
    app.add_exception_handler(HTTPException, _http_error)
    # four bytes a character at most, and room for the other fields
    # event streams are never compressed: Starlette leaves text/event-stream alone
    app.add_middleware(GZipMiddleware, minimum_size=500, compresslevel=6)
    app.add_middleware(Guard, max_body_bytes=4 * services.settings.max_prompt_chars + 65_536, failed=_unexpected)
    return app


class CachedFiles(StaticFiles):
    """Static files carry their version in the name or the query: browsers may keep them for a year."""

    async def get_response(self, path: str, scope: Any) -> Response:
        """The file, with its Cache-Control."""
        response = await super().get_response(path, scope)
        if response.status_code == 200:
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


async def _specrace_error(request: Request, error: Exception) -> Response:
    error = cast("SpecraceError", error)
    headers = {"Retry-After": str(error.retry_after_s)} if isinstance(error, Busy) else {}
    if request.url.path.startswith("/api/"):
        body = {
            "type": "about:blank",
            "title": type(error).__name__,
            "status": error.status,
            "detail": str(error),
            "field": error.field,
            "reason": error.reason,
            "remedy": error.remedy,
        }
        return Response(msgspec.json.encode(body), error.status, headers, media_type="application/problem+json")
    services: Services = request.state.services
    fragment = request.headers.get("hx-request") == "true"
    return HTMLResponse(services.renderer.problem(error, fragment=fragment), error.status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    error = cast("HTTPException", error)
    found = SpecraceError("address", f"{error.detail} (HTTP {error.status_code})", "Go back to the start page")
    found.status = error.status_code
    response = await _specrace_error(request, found)
    response.headers.update(error.headers or {})  # Allow, of a 405
    return response


async def _unexpected(request: Request) -> Response:
    # the traceback is in the log; nothing of it leaves the house
    found = SpecraceError("server", "something unexpected happened", "Try again; the log says more")
    return await _specrace_error(request, found)
