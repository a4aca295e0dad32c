"""What the routes share: services, the visitor, and a race wherever it is kept."""

from __future__ import annotations

import hmac
import secrets
from typing import Annotated, cast

from fastapi import Depends, Request
from starlette.responses import Response

from app.errors import NotAllowed, UnknownRace
from app.race.run import Run
from app.race.series import Series, rebuilt
from app.services import Services

VISITOR = "specrace_visitor"


def services_of(request: Request) -> Services:
    """The services that app.main's lifespan made."""
    return cast("Services", request.state.services)


ServicesDep = Annotated[Services, Depends(services_of)]


def visitor_of(request: Request) -> str:
    """Who started what: a random name in a cookie, known to nobody else."""
    return request.cookies.get(VISITOR) or secrets.token_urlsafe(16)


def remember(request: Request, response: Response, visitor: str) -> None:
    """Give the visitor's name along, where the browser does not have it yet."""
    if request.cookies.get(VISITOR) != visitor:
        secure = request.url.scheme == "https"
        response.set_cookie(VISITOR, visitor, max_age=86_400, httponly=True, samesite="lax", secure=secure)


async def find_run(services: Services, race_id: str) -> Run | None:
    """A race in memory, or one from the store, folded and closed; None when there is none."""
    run = services.hub.get(race_id)
    if run is not None:
        return run
    stored = await services.store.race(race_id)
    if stored is None:
        return None
    run = Run(stored.meta, None)
    for event in stored.events:
        run.append(event)
    run.log.close()
    found = await find_series(services, run.meta.series)
    run.series = None if found is None else lambda: found
    return run


async def find_series(services: Services, series: str | None) -> Series | None:
    """A series in memory, or rebuilt from its stored races; None when there is none."""
    if series is None:
        return None
    return services.repeater.get(series) or rebuilt(series, await services.store.series(series))


async def get_run(race_id: str, services: ServicesDep) -> Run:
    """The race of the path.

    Raises:
        UnknownRace: there is none.
    """
    run = await find_run(services, race_id)
    if run is None:
        raise UnknownRace("race", "there is no race with this id", "See /races for those that are kept")
    return run


RunDep = Annotated[Run, Depends(get_run)]


def cursor_of(request: Request) -> int:
    """Where a stream goes on: Last-Event-ID, else ?after=, else the beginning. Nonsense means the beginning."""
    text = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0


CursorDep = Annotated[int, Depends(cursor_of)]


def presenter(request: Request, services: ServicesDep) -> None:
    """Only with the presenter's token (Authorization: Bearer TOKEN).

    Raises:
        NotAllowed: it is missing or wrong.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    remedy = "Send the token printed at start as Authorization: Bearer TOKEN"
    if scheme.lower() != "bearer" or not token:
        raise NotAllowed("authorization", "only the presenter may do this", remedy)
    if not hmac.compare_digest(token.strip().encode(), services.settings.presenter_token.encode()):
        raise NotAllowed("authorization", "the presenter's token is wrong", remedy)
