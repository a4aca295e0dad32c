"""What the page's buttons do, and the stream that the page follows."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from sse_starlette import EventSourceResponse
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.errors import InvalidRace, UnknownRace
from app.race.run import Run
from app.race.summary import StoredRace
from app.services import Services
from app.web import board
from app.web.api import refuse_if_down
from app.web.deps import CursorDep, RunDep, ServicesDep, find_run, remember, visitor_of
from app.web.requests import from_form, times_of, to_spec
from app.web.sse import done, message, respond

router = APIRouter()


def show(request: Request, services: Services, run: Run) -> Response:
    """Answer a button: the arena of ``run`` for htmx, its page for a browser without JavaScript."""
    # the page of a series goes from race to race; whoever reloads it finds the one that runs
    url = f"/races/{run.meta.id}" if run.series is None else f"/series/{run.meta.series}/live"
    if request.headers.get("hx-request") != "true":
        return RedirectResponse(url, 303)
    html = arena_html(services, run)
    # a replay lives as long as it is watched: its address is that of the race it plays
    return HTMLResponse(html, headers={} if run.meta.origin else {"HX-Push-Url": url})


def arena_html(services: Services, run: Run) -> str:
    """What the page shows of ``run``, with a new ticket for its start button."""
    view = board.arena(run.meta, run.board, upto=run.log.head, now_ms=run.now_ms(), series=run.read_series())
    return services.renderer.arena(view, ticket=secrets.token_urlsafe(12))


@router.post("/races")
async def start(request: Request, services: ServicesDep) -> Response:
    """Start a race from the page's form."""
    async with request.form() as fields:
        form = {name: value for name, value in fields.items() if isinstance(value, str)}
    spec = to_spec(from_form(form), services.workloads, services.settings)
    await refuse_if_down(services)
    visitor = visitor_of(request)
    times, ticket = times_of(form), form.get("ticket", "")[:60] or None
    if times > 1:
        run = services.repeater.start(spec, times, owner=visitor, ticket=ticket)
    else:
        run = services.hub.start(spec, owner=visitor, ticket=ticket)
        services.repeater.make_way(visitor, run)
    response = show(request, services, run)
    remember(request, response, visitor)
    return response


@router.post("/warm-up")
async def warm_up(request: Request, services: ServicesDep) -> Response:
    """The page's "Warm up": only while a server is not known to be warm, so nobody keeps the servers busy with it."""
    await refuse_if_down(services)
    if any(lane.warm is not True for lane in services.lanes.values()):
        services.hub.warm_up()
    if request.headers.get("hx-request") == "true":
        return Response(status_code=204)
    return RedirectResponse("/", 303)


@router.post("/races/{race_id}/stop")
async def stop(request: Request, run: RunDep, services: ServicesDep) -> Response:
    """Stop both lanes; the stream shows it. The race of a series takes the series with it."""
    services.hub.stop(run.meta.id)
    services.repeater.stop(run.meta.series if run.is_race else None)
    if request.headers.get("hx-request") == "true":
        return Response(status_code=204)
    return RedirectResponse(f"/races/{run.meta.id}", 303)


@router.post("/races/{race_id}/replay")
async def replay(request: Request, run: RunDep, services: ServicesDep) -> Response:
    """Play a kept race at its recorded pace."""
    if not run.log.closed:
        raise InvalidRace("race", "it is still running", "Wait for its end")
    return play(request, services, StoredRace(run.meta, list(run.log.between(0))))


@router.post("/recordings/{workload}/play")
async def play_recording(request: Request, workload: str, services: ServicesDep) -> Response:
    """Play the recorded real run of a workload."""
    recording = services.recordings.get(workload)
    if recording is None:
        raise UnknownRace("recording", "there is no recorded run of this prompt", "Pick one of the ready prompts")
    return play(request, services, recording)


def play(request: Request, services: Services, race: StoredRace) -> Response:
    """Start a replay for this visitor; it ends an earlier one of theirs."""
    visitor = visitor_of(request)
    response = show(request, services, services.hub.replay(race, owner=visitor))
    remember(request, response, visitor)
    return response


@router.get("/races/{race_id}/stream")
async def stream(race_id: str, after: CursorDep, services: ServicesDep) -> EventSourceResponse:
    """The page's one connection: frames for both panes and the scoreboard. Always 200, always ends with ``done``."""
    run = await find_run(services, race_id)
    return respond(_over(services) if run is None else services.feeds.frames(run, after))


async def _over(services: Services) -> AsyncIterator[bytes]:
    error = UnknownRace("race", "this run is over and was not kept", "Start a new one")
    yield message(services.renderer.problem(error, fragment=True))
    yield done("unknown")
