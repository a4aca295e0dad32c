"""Races over workloads and loads without a page: what ``specrace bench`` runs.

A lap of a load c asks both lanes for the same requests, c at once on a lane: "in turn" all of one lane's before the
other's, so that each lane has its server and its device alone. At c = 1 a wave is one ordinary race. Under load no
lane reads its server's counters (they would hold the other requests too): acceptance is the per-request record or
not there.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import anyio
from msgspec import Struct, structs

from app.race.clock import MonotonicNs, monotonic_ns
from app.race.counters import Counters
from app.race.fairness import known_before, new_salt
from app.race.race import Race
from app.race.racer import Runner
from app.race.repeats import Lap
from app.race.run import Run
from app.race.scoreboard import LaneBoard
from app.race.speller import Speller
from app.race.summary import RaceMeta
from app.race.types import (
    LANES,
    Candidate,
    EndpointState,
    LaneIdentity,
    LaneName,
    RaceSpec,
    Sampling,
    Schedule,
    Setting,
)
from app.race.upstream import Receive, Sent

SEEDS = 2**63
"""Seeds are below this."""


class Server(Runner, Protocol):
    """A lane's server, as a sweep needs it (app.race.lane.LaneServer)."""

    async def probe(self) -> EndpointState:
        """What the server is now; never raises."""
        ...


class Ask(Struct, frozen=True, kw_only=True):
    """One request, the same for both lanes."""

    prompt: str
    system: str | None
    sampling: Sampling


class Item(Struct, frozen=True, kw_only=True):
    """A row of the result: a ready prompt, or a set of prompts that a lap goes through."""

    name: str
    asks: tuple[Ask, ...]


class Plan(Struct, frozen=True, kw_only=True):
    """What to run. ``fresh_cache``: every request gets a cache salt of its own, equal on both lanes."""

    items: tuple[Item, ...]
    loads: tuple[int, ...]
    repeats: int
    schedule: Schedule
    fresh_cache: bool


Settings = Callable[[], Setting]
"""What is known of the pair now, before a race."""
Tell = Callable[[Item, int, Lap], None]
"""Called after each lap with its item and its load."""


async def sweep(
    plan: Plan,
    servers: Mapping[LaneName, Server],
    *,
    setting: Settings,
    tell: Tell,
    clock: MonotonicNs = monotonic_ns,
) -> str | None:
    """Run the plan, lap by lap; the lanes alternate who goes first.

    Ends early, and says why, when a lane failed and its server does not answer any more. A lane that fails for another
    reason spoils its lap only.
    """
    for load in plan.loads:
        for item in plan.items:
            for number in range(1, plan.repeats + 1):
                lap = await _lap(plan, item, load, number, _Pair(servers, setting, clock))
                tell(item, load, lap)
                gone = await _gone(lap, servers)
                if gone is not None:
                    return gone
    return None


class _Pair(Struct, frozen=True):
    """What every wave needs."""

    servers: Mapping[LaneName, Server]
    setting: Settings
    clock: MonotonicNs


def requests(item: Item, load: int, number: int) -> tuple[Ask, ...]:
    """The requests of lap ``number`` (from 1) on each lane: every prompt of the item once, and again from the first
    until they fill whole waves of ``load``. Seeds go up by one from request to request over all laps, so that sampled
    answers differ; the first request of the first lap has the seed that was asked for."""
    size = -(-len(item.asks) // load) * load
    begin = (number - 1) * size
    asks = (item.asks[index % len(item.asks)] for index in range(size))
    return tuple(
        structs.replace(ask, sampling=structs.replace(ask.sampling, seed=(ask.sampling.seed + begin + index) % SEEDS))
        for index, ask in enumerate(asks)
    )


async def _lap(plan: Plan, item: Item, load: int, number: int, pair: _Pair) -> Lap:
    first: LaneName = LANES[(number - 1) % 2]
    specs = [
        RaceSpec(
            workload=item.name,
            prompt=ask.prompt,
            system=ask.system,
            sampling=ask.sampling,
            schedule=plan.schedule,
            first=first,
            cache_salt=new_salt() if plan.fresh_cache else None,
        )
        for ask in requests(item, load, number)
    ]
    runs: list[Run] = []
    busy: dict[LaneName, float | None] = dict.fromkeys(LANES, 0.0)
    for begin in range(0, len(specs), load):
        wave = await _wave(specs[begin : begin + load], pair)
        for lane in LANES:
            before, took = busy[lane], busy_ms([run.board.lanes[lane] for run in wave])
            busy[lane] = None if before is None or took is None else before + took
        runs += wave
    return Lap(number=number, first=first, races=tuple(run.summary() for run in runs), busy_ms=busy)


async def _wave(specs: Sequence[RaceSpec], pair: _Pair) -> list[Run]:
    """All races of ``specs`` at once, on one clock."""
    size = len(specs)
    gates: Mapping[LaneName, Runner] = pair.servers
    if size > 1:
        gates = {lane: Gate(pair.servers[lane], size) for lane in LANES}
    epoch_ns, setting = pair.clock(), pair.setting()
    runs: list[Run] = []
    async with anyio.create_task_group() as group:
        for spec in specs:
            created_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            run = Run(RaceMeta(id=secrets.token_hex(6), spec=spec, created_at=created_at), None, clock=pair.clock)
            race = Race(spec, gates, run, epoch_ns=epoch_ns, clock=pair.clock)
            runs.append(run)
            known = known_before(setting, spec.schedule)
            group.start_soon(partial(race.run, queue_ms=0.0, in_flight=size, conditions=known, setting=setting))
    return runs


class Gate:
    """A lane's server in a wave: no request goes out before all ``size`` races have come to this lane. A race asks for
    the model once a lane, just before its request, whatever became of its other lane; it waits there."""

    def __init__(self, server: Runner, size: int) -> None:
        self._server = server
        self._all_here = asyncio.Barrier(size)

    @property
    def identity(self) -> LaneIdentity:
        """Of the server."""
        return self._server.identity

    @property
    def speculating(self) -> bool | None:
        """Of the server."""
        return self._server.speculating

    @property
    def reports_per_request(self) -> bool:
        """Of the server."""
        return self._server.reports_per_request

    @property
    def takes_salt(self) -> bool:
        """Of the server."""
        return self._server.takes_salt

    @property
    def speller(self) -> Speller | None:
        """None: nobody looks at which tokens of a wave were drafted."""
        return None

    async def model(self) -> str:
        """The model, once all races of the wave are here."""
        await self._all_here.wait()
        return await self._server.model()

    async def run(self, spec: RaceSpec, model: str, sent: Sent, receive: Receive) -> None:
        """Of the server."""
        await self._server.run(spec, model, sent, receive)

    async def rate(
        self, context: Sequence[int], tokens: Sequence[int], timeout_s: float
    ) -> tuple[Candidate, ...] | None:
        """None: nobody else is asked for while others of the wave are timed."""
        del context, tokens, timeout_s

    async def counters(self, timeout_s: float) -> Counters | None:  # noqa: ARG002  # the signature is the server's
        """None: the counters of a server under load hold all of its requests."""
        return None


def busy_ms(lanes: Sequence[LaneBoard]) -> float | None:
    """From the first request sent to the last token of a wave on one lane; None when one of them brought nothing."""
    sent = [lane.sent_ms for lane in lanes if lane.sent_ms is not None]
    last = [lane.last_ms for lane in lanes if lane.last_ms is not None]
    return max(last) - min(sent) if len(sent) == len(last) == len(lanes) else None


async def _gone(lap: Lap, servers: Mapping[LaneName, Server]) -> str | None:
    """Why there is no point in going on; None when every lane finished, or its server answers again."""
    for lane in LANES:
        if any(race.lanes[lane].status != "finished" for race in lap.races):
            state = await servers[lane].probe()
            if state.status != "ready":
                return f"the {lane} server does not answer any more. {state.detail or ''}".strip()
    return None
