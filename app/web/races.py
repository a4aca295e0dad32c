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
from app.web.requests import from_form, to_spec
from app.web.sse import done, message, respond

router = APIRouter()


def show(request: Request, services: Services, run: Run) -> Response:
    """Answer a button: the arena of ``run`` for htmx, its page for a browser without JavaScript."""
    url = f"/races/{run.meta.id}"
    if request.headers.get("hx-request") != "true":
        return RedirectResponse(url, 303)
    view = board.arena(run.meta, run.board, upto=run.log.head, now_ms=run.now_ms())
    html = services.renderer.arena(view, ticket=secrets.token_urlsafe(12))
    # a replay lives as long as it is watched: its address is that of the race it plays
    return HTMLResponse(html, headers={} if run.meta.origin else {"HX-Push-Url": url})


@router.post("/races")
async def start(request: Request, services: ServicesDep) -> Response:
    """Start a race from the page's form."""
    async with request.form() as fields:
        form = {name: value for name, value in fields.items() if isinstance(value, str)}
    spec = to_spec(from_form(form), services.workloads, services.settings)
    await refuse_if_down(services)
    visitor = visitor_of(request)
    run = services.hub.start(spec, owner=visitor, ticket=form.get("ticket", "")[:60] or None)
    response = show(request, services, run)
    remember(request, response, visitor)
    return response


@router.post("/races/{race_id}/stop")
async def stop(request: Request, run: RunDep, services: ServicesDep) -> Response:
    """Stop both lanes; the stream shows it."""
    services.hub.stop(run.meta.id)
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
