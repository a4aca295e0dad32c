"""For whoever runs this: is it alive, is it ready, what has it done."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from app.race.types import LANES
from app.services import Services
from app.web.api import json
from app.web.deps import ServicesDep

router = APIRouter()


@router.api_route("/healthz", methods=["GET", "HEAD"])
async def healthz() -> Response:
    """The event loop answers."""
    return json({"status": "ok"})


@router.api_route("/readyz", methods=["GET", "HEAD"])
async def readyz(services: ServicesDep) -> Response:
    """Both servers are ready and races are kept; 503 with the reasons otherwise."""
    states = {lane: services.telemetry.state(lane) for lane in LANES}
    reasons = {lane: state.detail or state.status for lane, state in states.items() if state.status != "ready"}
    if services.store.broken:
        reasons["store"] = "races cannot be written"
    return json({"status": "not ready" if reasons else "ready", "reasons": reasons}, 503 if reasons else 200)


class _Hub(Collector):
    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        hub, telemetry = self._services.hub, self._services.telemetry
        races = CounterMetricFamily("specrace_races", "Races that ended, by how", labels=["status"])
        for status, count in hub.ended.items():
            races.add_metric([status], count)
        yield races
        yield GaugeMetricFamily("specrace_races_waiting", "Races in the queue", value=hub.waiting)
        yield GaugeMetricFamily("specrace_open_streams", "Viewers connected now", value=hub.viewers)
        ready = GaugeMetricFamily("specrace_endpoint_ready", "1 when the server of a lane is ready", labels=["lane"])
        for lane in LANES:
            ready.add_metric([lane], float(telemetry.state(lane).status == "ready"))
        yield ready


@router.get("/metrics")
async def metrics(services: ServicesDep) -> Response:
    """Prometheus."""
    registry = CollectorRegistry()
    registry.register(_Hub(services))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
