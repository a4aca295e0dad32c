"""The page: what is shown at an address."""

from __future__ import annotations

import secrets

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.race.run import Run
from app.services import Services
from app.web import board, deck
from app.web.deps import RunDep, ServicesDep, remember, visitor_of
from app.web.views import PageView

router = APIRouter()


async def page_view(services: Services, selected: str | None, *, run: Run | None = None) -> PageView:
    """The page with a tab or workload open, or with a race in the arena."""
    states = await services.telemetry.states()
    arena = (
        None
        if run is None
        else board.arena(run.meta, run.board, upto=run.log.head, now_ms=run.now_ms(), series=run.read_series())
    )
    return deck.page(
        services.workloads,
        selected,
        endpoints=list(states.values()),
        recordings=services.recordings,
        ticket=secrets.token_urlsafe(12),
        max_tokens=services.settings.max_tokens,
        max_chars=services.settings.max_prompt_chars,
        warming=services.hub.warming,
        arena=arena,
        meta=None if run is None else run.meta,
    )


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request, services: ServicesDep, workload: str | None = None) -> Response:
    """The page; a click on a tab asks for its part of it."""
    view = await page_view(services, workload)
    fragment = request.headers.get("hx-request") == "true" and request.headers.get("hx-request-type") != "full"
    html = services.renderer.deck(view) if fragment else services.renderer.index(view)
    response = HTMLResponse(html, headers={"Vary": "HX-Request, HX-Request-Type", "Cache-Control": "no-store"})
    remember(request, response, visitor_of(request))
    return response


@router.get("/favicon.ico")
async def favicon() -> Response:
    """Asked for by browsers that look at a stream or JSON directly."""
    return RedirectResponse("/static/icon.svg", 308)


@router.get("/status")
async def status(services: ServicesDep, workload: str = "") -> Response:
    """Lamps, engines and the start button, polled by the page."""
    states = await services.telemetry.states()
    warming = services.hub.warming
    view = deck.status(list(states.values()), workload=workload, recordings=services.recordings, warming=warming)
    return HTMLResponse(services.renderer.status(view), headers={"Cache-Control": "no-store"})


@router.get("/races")
async def history(services: ServicesDep) -> Response:
    """Past races, newest first."""
    rows = [deck.row(race, services.workloads) for race in await services.store.summaries(limit=200)]
    return HTMLResponse(services.renderer.history(rows), headers={"Cache-Control": "no-store"})


@router.get("/races/{race_id}")
async def race(request: Request, run: RunDep, services: ServicesDep) -> Response:
    """One race: live, or as it ended, with its replay a click away. A permalink."""
    view = await page_view(services, run.meta.spec.workload, run=run)
    response = HTMLResponse(services.renderer.index(view), headers={"Cache-Control": "no-store"})
    remember(request, response, visitor_of(request))
    return response
