"""Everything that has a life, in one frozen place. Made by app.main's lifespan, handed to the routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.ops.preflight import Preflight
from app.ops.telemetry import Telemetry
from app.race.hub import Hub
from app.race.lane import LaneServer
from app.race.repeater import Repeater
from app.race.store import Store
from app.race.summary import StoredRace
from app.race.types import LaneName
from app.race.workloads import Workloads
from app.settings import Settings
from app.web.render import Renderer
from app.web.sse import Feeds


@dataclass(frozen=True, slots=True)
class Services:
    """One per app. ``recordings`` maps a workload's name to its recorded real run."""

    settings: Settings
    workloads: Workloads
    recordings: Mapping[str, StoredRace]
    lanes: Mapping[LaneName, LaneServer]
    telemetry: Telemetry
    store: Store
    hub: Hub
    repeater: Repeater
    preflight: Preflight
    renderer: Renderer
    feeds: Feeds
    profile_notes: str | None = None
