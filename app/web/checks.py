"""The check before a show, as a page: everybody sees the last one, and may ask for a new one when the pair is free."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.errors import Busy
from app.ops.findings import SIGNS, Finding, Report, by_lane
from app.ops.preflight import Preflight
from app.race.types import LaneName
from app.web import format as say
from app.web import words
from app.web.deps import ServicesDep
from app.web.views import CheckView, FindingsView, FindingView

router = APIRouter()


def check_view(preflight: Preflight, refused: Busy | None = None) -> CheckView:
    """The check that runs, and the last one, in words; ``refused`` is why another was not started just now."""
    last = preflight.last
    return CheckView(
        ready=None if last is None else last.ready,
        headline=_headline(last),
        why=None if last is None else last.why,
        when=None if last is None else say.moment(last.at),
        took=None if last is None else say.span(last.took_s),
        doing=preflight.doing,
        refused=None if refused is None else f"{refused.reason[0].upper()}{refused.reason[1:]}. {refused.remedy}.",
        groups=() if last is None else tuple(_group(lane, findings) for lane, findings in by_lane(last.findings)),
    )


def _headline(last: Report | None) -> str:
    if last is None:
        return "Not checked yet"
    return "Ready" if last.ready else "Not ready"


def _group(lane: LaneName | None, findings: list[Finding]) -> FindingsView:
    return FindingsView(
        lane=lane,
        title="Both together" if lane is None else words.LANE_TITLES[lane],
        findings=tuple(
            FindingView(
                level=finding.level,
                sign=SIGNS[finding.level],
                title=finding.title,
                detail=finding.detail,
                remedy=finding.remedy,
                code=finding.code,
            )
            for finding in findings
        ),
    )


@router.get("/check")
async def page(request: Request, services: ServicesDep) -> Response:
    """The last check, or the one that runs; looking starts none."""
    fragment = request.headers.get("hx-request") == "true"
    html = services.renderer.check(check_view(services.preflight), fragment=fragment)
    return HTMLResponse(html, headers={"Cache-Control": "no-store", "Vary": "HX-Request"})


@router.post("/check")
async def start(services: ServicesDep) -> Response:
    """Start a check; the page shows it. Refused, with the reason, while a race is on or another check runs."""
    try:
        services.preflight.start()
    except Busy as busy:
        html = services.renderer.check(check_view(services.preflight, busy))
        return HTMLResponse(html, busy.status, {"Retry-After": str(busy.retry_after_s), "Cache-Control": "no-store"})
    return RedirectResponse("/check", 303)
