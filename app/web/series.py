"""Races repeated: the page that goes from race to race, the series on a page of its own, and its JSON and tables."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.errors import UnknownRace
from app.race import series_files as files
from app.race.series import Series, summarize_series
from app.web import spreads
from app.web.api import json, refuse_if_down
from app.web.deps import ServicesDep, find_run, find_series, remember, visitor_of
from app.web.pages import page_view
from app.web.races import arena_html
from app.web.requests import series_of_json, to_spec

router = APIRouter()

FRESH = {"Cache-Control": "no-store"}


async def get_series(series_id: str, services: ServicesDep) -> Series:
    """The series of the path.

    Raises:
        UnknownRace: there is none.
    """
    found = await find_series(services, series_id)
    if found is None:
        raise UnknownRace("series", "there is no series with this id", "See /races for the races that are kept")
    return found


SeriesDep = Annotated[Series, Depends(get_series)]


# --- the page ---------------------------------------------------------------------------------------


@router.get("/series/{series_id}")
async def one(request: Request, series: SeriesDep, services: ServicesDep) -> Response:
    """The series by itself: plot, tables, a link to each race. While it runs the page asks again."""
    services.repeater.seen(series.id)
    fragment = request.headers.get("hx-request") == "true" and request.headers.get("hx-request-type") != "full"
    html = services.renderer.series(spreads.series_view(series), fragment=fragment)
    return HTMLResponse(html, headers={"Vary": "HX-Request, HX-Request-Type"} | FRESH)


@router.get("/series/{series_id}/live")
async def live(request: Request, series: SeriesDep, services: ServicesDep) -> Response:
    """The race of the series that runs now, or its last one."""
    run = await find_run(services, series.race_ids[-1])
    if run is None:
        raise UnknownRace("race", "the last race of this series was deleted", f"See /series/{series.id}")
    view = await page_view(services, run.meta.spec.workload, run=run)
    response = HTMLResponse(services.renderer.index(view), headers=FRESH)
    remember(request, response, visitor_of(request))
    return response


@router.get("/series/{series_id}/next")
async def following(series_id: str, services: ServicesDep, after: str = "") -> Response:
    """The race after ``after``, for a page that has seen that one to its end. 204 while there is none yet; the answer
    of a series that is over asks no more."""
    services.repeater.seen(series_id)
    series = await find_series(services, series_id)
    newest = series.race_ids[-1] if series is not None else after
    if series is not None and series.live and newest == after:
        return Response(status_code=204, headers=FRESH)
    run = await find_run(services, newest)
    if run is None:
        return HTMLResponse(services.renderer.no_next(), headers={"HX-Reswap": "none"} | FRESH)
    headers = {} if series is None else {"HX-Replace-Url": f"/series/{series.id}/live"}
    return HTMLResponse(arena_html(services, run), headers=headers | FRESH)


@router.post("/series/{series_id}/stop")
async def stop(request: Request, series: SeriesDep, services: ServicesDep) -> Response:
    """Stop the race that runs, and start no more."""
    services.repeater.stop(series.id)
    if request.headers.get("hx-request") == "true":
        return Response(status_code=204)
    return RedirectResponse(f"/series/{series.id}", 303)


# --- for scripts ------------------------------------------------------------------------------------


@router.post("/api/series", status_code=201)
async def start(request: Request, services: ServicesDep) -> Response:
    """Start a series; it runs to its end without viewers."""
    body, times = series_of_json(await request.body())
    spec = to_spec(body, services.workloads, services.settings)
    await refuse_if_down(services)
    run = services.repeater.start(spec, times)
    series = run.meta.series
    answer = {"id": series, "url": f"/series/{series}", "races": [run.meta.id]}
    return json(answer, 201, {"Location": f"/api/series/{series}"})


@router.get("/api/series/{series_id}.csv")
async def as_csv(series: SeriesDep) -> Response:
    """A line for each race and lane."""
    name = f'attachment; filename="specrace-series-{series.id}.csv"'
    return Response(files.as_csv(series), headers={"Content-Disposition": name} | FRESH, media_type="text/csv")


@router.get("/api/series/{series_id}.md")
async def as_markdown(series: SeriesDep) -> Response:
    """Tables to paste into an issue."""
    return Response(files.as_markdown(series), headers=FRESH, media_type="text/markdown; charset=utf-8")


@router.get("/api/series/{series_id}")
async def summary(series: SeriesDep) -> Response:
    """The series as JSON: its races and what they come to."""
    return json(summarize_series(series), headers=FRESH)


@router.post("/api/series/{series_id}/stop")
async def stop_by_script(series: SeriesDep, services: ServicesDep) -> Response:
    """Stop the race that runs, and start no more; a series that is over stays as it is."""
    services.repeater.stop(series.id)
    now = services.repeater.get(series.id) or series
    return json({"id": series.id, "status": now.status}, 202)
