"""The app, put together: create_app and its lifespan. No logic in here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import msgspec
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from app import __version__
from app.errors import Busy, SpecraceError
from app.ops.telemetry import Engines, Telemetry
from app.race.endpoint import Endpoint
from app.race.hub import Hub, Limits
from app.race.lane import LaneServer
from app.race.replay import read_recording
from app.race.store import Store
from app.race.types import LANES, Caveat, LaneName, RaceSpec
from app.race.upstream import Timeouts, Upstream
from app.race.workloads import load_workloads
from app.services import Services
from app.settings import HOME, Settings
from app.web import api, health, pages, races
from app.web.render import Renderer
from app.web.security import Guard
from app.web.sse import Feeds

RECORDINGS = HOME / "deploy" / "recordings"


def make_lanes(
    settings: Settings, endpoints: Mapping[LaneName, Endpoint], methods: Mapping[LaneName, str]
) -> dict[LaneName, LaneServer]:
    """A LaneServer for each lane; ``methods`` names how a lane drafts, where that is known."""
    timeouts = Timeouts(
        connect_s=settings.connect_timeout, first_token_s=settings.first_token_timeout, stall_s=settings.stall_timeout
    )
    return {lane: LaneServer(lane, Upstream(endpoints[lane], timeouts), method=methods.get(lane)) for lane in LANES}


def make_services(
    settings: Settings, lanes: Mapping[LaneName, LaneServer], engines: Engines | None, fixed: tuple[Caveat, ...]
) -> Services:
    """Everything with a life, not started yet.

    Raises:
        SettingsError: workloads or recordings cannot be read.
    """

    def conditions(spec: RaceSpec) -> tuple[Caveat, ...]:
        found: list[Caveat] = [] if all(lane.warm for lane in lanes.values()) else ["cold_start"]
        if spec.schedule == "together" and len({lane.upstream.endpoint.host for lane in lanes.values()}) == 1:
            found.append("shared_device")
        return (*found, *fixed)

    store = Store(settings.database)
    limits = Limits(races_at_once=settings.races_at_once, queue_limit=settings.queue_limit)
    hub = Hub(lanes, store, limits, conditions, lambda: lanes["speculative"].state.version)
    renderer = Renderer()
    recordings = {
        race.meta.spec.workload: race
        for path in sorted(RECORDINGS.glob("*.jsonl.gz"))
        if (race := read_recording(path))
    }
    return Services(
        settings=settings,
        workloads=load_workloads(settings.workloads),
        recordings={name: race for name, race in recordings.items() if name is not None},
        lanes=lanes,
        telemetry=Telemetry(lanes, busy=lambda: hub.racing, engines=engines),
        store=store,
        hub=hub,
        renderer=renderer,
        feeds=Feeds(renderer),
    )


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
            await services.hub.close()
            group.cancel_scope.cancel()
        for lane in services.lanes.values():
            await lane.upstream.close()
        services.store.close()

    app = FastAPI(
        title="Specrace", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.mount("/static", CachedFiles(directory=HOME / "static"), name="static")
    for room in (health, api, races, pages):
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
