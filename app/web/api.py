"""JSON for scripts: the contract under /api."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Depends, Request
from sse_starlette import EventSourceResponse
from starlette.responses import Response

from app.errors import EndpointsDown, InvalidRace, UnknownRace
from app.services import Services
from app.web.deps import CursorDep, RunDep, ServicesDep, find_run, presenter
from app.web.requests import from_json_body, to_spec
from app.web.sse import json_events, respond

router = APIRouter(prefix="/api")


def json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """``content`` as JSON; msgspec writes structs as they are and never NaN."""
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


@router.post("/races", status_code=201)
async def start(request: Request, services: ServicesDep) -> Response:
    """Start a race; it runs to its end without viewers."""
    spec = to_spec(from_json_body(await request.body()), services.workloads, services.settings)
    await refuse_if_down(services)
    run = services.hub.start(spec)
    url = f"/races/{run.meta.id}"
    body = {"id": run.meta.id, "url": url, "events_url": f"/api{url}/events"}
    return json(body, 201, {"Location": f"/api{url}"})


async def refuse_if_down(services: Services) -> None:
    """Refuse a race that cannot begin.

    Raises:
        EndpointsDown: neither server can be reached.
    """
    if not await services.telemetry.unreachable():
        return
    states = await services.telemetry.states()
    reason = "; ".join(f"{lane}: {state.detail or state.status}" for lane, state in states.items())
    raise EndpointsDown("endpoints", reason, "Start the servers, see GET /api/endpoints, then race again")


@router.get("/races")
async def history(services: ServicesDep, limit: str = "50", before: str | None = None) -> Response:
    """Races that are over, newest first; ``before`` is the last id of the page before."""
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 3 and 1 <= int(limit) <= 500):
        raise InvalidRace("limit", f"{limit[:20]!r} is out of range", "Use 1 to 500")
    if before is not None and not await services.store.knows(before):
        raise InvalidRace("before", "there is no race with this id", "Begin again with the newest: leave it out")
    return json({"races": await services.store.summaries(limit=int(limit), before=before)})


@router.post("/warm-up", dependencies=[Depends(presenter)])
async def warm_up(services: ServicesDep) -> Response:
    """A few tokens from each server, counted nowhere. ``position`` is its place in the queue, null when it runs."""
    await refuse_if_down(services)
    run = services.hub.warm_up()
    return json({"status": run.board.status, "position": run.board.position, "state_url": "/api/endpoints"}, 202)


@router.get("/races/{race_id}")
async def one(run: RunDep) -> Response:
    """One race, live or kept."""
    return json(run.summary())


@router.delete("/races/{race_id}", dependencies=[Depends(presenter)])
async def delete(race_id: str, services: ServicesDep) -> Response:
    """Forget a race; a running one is stopped first."""
    if await find_run(services, race_id) is None:
        raise UnknownRace("race", "there is no race with this id", "See GET /api/races")
    await services.hub.forget(race_id)
    services.store.delete(race_id)
    await services.store.written()
    return Response(status_code=204)


@router.post("/races/{race_id}/stop")
async def stop(run: RunDep, services: ServicesDep) -> Response:
    """Stop both lanes; a race that is over stays as it is. The race of a series takes the series with it."""
    services.hub.stop(run.meta.id)
    services.repeater.stop(run.meta.series if run.is_race and not run.log.closed else None)
    return json({"id": run.meta.id, "status": run.board.status}, 202)


@router.get("/races/{race_id}/events")
async def events(run: RunDep, after: CursorDep) -> EventSourceResponse:
    """Every event from ``after`` on, then ``done``."""
    return respond(json_events(run, after))


@router.get("/endpoints")
async def endpoints(services: ServicesDep) -> Response:
    """State of both servers."""
    return json(await services.telemetry.states())


@router.get("/check")
async def last_check(services: ServicesDep) -> Response:
    """The last check of the pair, null when there was none."""
    return json(services.preflight.last)


@router.post("/check", dependencies=[Depends(presenter)])
async def check(services: ServicesDep) -> Response:
    """Check the pair and wait for what is found; goes on to its end also when nobody waits."""
    return json(await services.preflight.run())


@router.get("/workloads")
async def workloads(services: ServicesDep) -> Response:
    """Tabs and ready prompts."""
    return json({"tabs": services.workloads.tab, "workloads": services.workloads.workload})


@router.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False)
async def nothing() -> Response:
    """A path that is none."""
    raise UnknownRace("path", "there is nothing at this path", "See the README for the API")
