"""Races over workloads and loads: who is asked for what, in which order, how many at once, and when it ends early."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest
from msgspec import structs

from app.race.failures import UpstreamError
from app.race.repeats import Lap
from app.race.scoreboard import LaneBoard
from app.race.sweep import SEEDS, Ask, Item, Plan, busy_ms, requests, sweep
from app.race.types import EndpointState, LaneName, RaceSpec, Sampling, Schedule, Setting
from tests.race.helpers import FIN, FakeRunner, chunk, ended, sent, tok, total

pytestmark = pytest.mark.anyio
ANSWER = (tok("Hel"), tok("lo", 2), FIN, total(3))
BREAK = UpstreamError("cut_off", "The stream ended in the middle of the answer")


class Server(FakeRunner):
    """Remembers what it was asked for, and says what ``told`` says when it is probed."""

    def __init__(self, lane: LaneName, seen: list[tuple[LaneName, RaceSpec]], *steps: Any, **rest: Any) -> None:
        self.told = rest.pop("told", EndpointState(lane=lane, status="ready"))
        super().__init__(*steps, **rest)
        self.lane: LaneName = lane
        self.seen = seen
        self.probes = self.now = self.most = 0

    async def run(self, spec: RaceSpec, model: str, sent: Any, receive: Any) -> None:
        self.seen.append((self.lane, spec))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await super().run(spec, model, sent, receive)
        finally:
            self.now -= 1

    async def probe(self) -> EndpointState:
        self.probes += 1
        return self.told


class Scene:
    """A pair, and the laps that were told."""

    def __init__(self, baseline: tuple[Any, ...] = ANSWER, speculative: tuple[Any, ...] = ANSWER, **rest: Any) -> None:
        self.seen: list[tuple[LaneName, RaceSpec]] = []
        self.servers: dict[LaneName, Server] = {
            "baseline": Server("baseline", self.seen, *baseline, **rest),
            "speculative": Server("speculative", self.seen, *speculative),
        }
        self.laps: list[tuple[str, int, Lap]] = []

    async def run(self, plan: Plan, within_s: float = 5.0) -> str | None:
        with anyio.fail_after(within_s):
            return await sweep(
                plan,
                self.servers,
                setting=lambda: Setting(baseline_warm=True, speculative_warm=True),
                tell=lambda item, load, lap: self.laps.append((item.name, load, lap)),
            )

    @property
    def lanes(self) -> list[LaneName]:
        return [lane for lane, _ in self.seen]


def item(name: str = "json", *prompts: str, seed: int = 0) -> Item:
    sampling = Sampling(temperature=0.0, top_p=1.0, seed=seed, max_tokens=64, ignore_eos=True)
    return Item(name=name, asks=tuple(Ask(prompt=p, system=None, sampling=sampling) for p in prompts or ("Count.",)))


def plan(*items: Item, loads: tuple[int, ...] = (1,), repeats: int = 2, schedule: Schedule = "in_turn") -> Plan:
    return Plan(items=items or (item(),), loads=loads, repeats=repeats, schedule=schedule, fresh_cache=True)


# ------------------------------------------------------------------------------------------------ order
async def test_every_workload_is_run_at_every_load_as_often_as_asked() -> None:
    scene = Scene()
    assert await scene.run(plan(item("a"), item("b"), loads=(1, 2), repeats=2)) is None
    told = [(name, load, lap.number, len(lap.races)) for name, load, lap in scene.laps]
    assert told == [
        *(("a", 1, 1, 1), ("a", 1, 2, 1), ("b", 1, 1, 1), ("b", 1, 2, 1)),
        *(("a", 2, 1, 2), ("a", 2, 2, 2), ("b", 2, 1, 2), ("b", 2, 2, 2)),
    ]
    assert all(lap.finished for _, _, lap in scene.laps)
    assert {race.workload for _, _, lap in scene.laps[:2] for race in lap.races} == {"a"}


@pytest.mark.parametrize("schedule", ["in_turn", "together"])
async def test_the_lanes_alternate_who_goes_first(schedule: Schedule) -> None:
    scene = Scene()
    await scene.run(plan(repeats=3, schedule=schedule))
    assert [lap.first for _, _, lap in scene.laps] == ["baseline", "speculative", "baseline"]
    assert scene.lanes[::2] == ["baseline", "speculative", "baseline"]
    assert {spec.schedule for _, spec in scene.seen} == {schedule}


# ------------------------------------------------------------------------------------------------ requests
async def test_both_lanes_are_asked_for_the_same_and_no_two_races_share_a_salt() -> None:
    scene = Scene()
    await scene.run(plan(repeats=3, loads=(2,)))
    by_lane = {
        lane: sorted((spec for at, spec in scene.seen if at == lane), key=lambda spec: spec.sampling.seed)
        for lane in ("baseline", "speculative")
    }
    assert by_lane["baseline"] == by_lane["speculative"]
    assert [spec.sampling.seed for spec in by_lane["baseline"]] == [0, 1, 2, 3, 4, 5]
    salts = Counter(spec.cache_salt for _, spec in scene.seen)
    assert None not in salts
    assert set(salts.values()) == {2}, "one salt a race, sent to both servers"


async def test_without_a_fresh_cache_no_salt_is_sent() -> None:
    scene = Scene()
    await scene.run(structs.replace(plan(), fresh_cache=False))
    assert {spec.cache_salt for _, spec in scene.seen} == {None}


@pytest.mark.parametrize(
    ("prompts", "load", "number", "asked"),
    [
        ("a", 1, 1, [("a", 5)]),
        ("a", 1, 3, [("a", 7)]),
        ("a", 3, 2, [("a", 8), ("a", 9), ("a", 10)]),
        ("abc", 1, 1, [("a", 5), ("b", 6), ("c", 7)]),
        ("abc", 1, 2, [("a", 8), ("b", 9), ("c", 10)]),
        ("abc", 2, 1, [("a", 5), ("b", 6), ("c", 7), ("a", 8)]),
        ("ab", 4, 1, [("a", 5), ("b", 6), ("a", 7), ("b", 8)]),
    ],
)
def test_prompts_are_gone_through_in_whole_waves_and_seeds_go_up(
    prompts: str, load: int, number: int, asked: list[tuple[str, int]]
) -> None:
    found = requests(item("x", *prompts, seed=5), load, number)
    assert [(ask.prompt, ask.sampling.seed) for ask in found] == asked


def test_a_seed_stays_one_that_a_server_takes() -> None:
    found = requests(item(seed=SEEDS - 1), 2, 1)
    assert [ask.sampling.seed for ask in found] == [SEEDS - 1, 0]


# ------------------------------------------------------------------------------------------------ load
async def test_under_load_a_lane_has_all_its_requests_at_once_and_the_other_lane_waits() -> None:
    scene = Scene((tok("a"), 0.02, FIN, total(1)), (tok("a"), 0.02, FIN, total(1)))
    await scene.run(plan(loads=(3,), repeats=1))
    assert scene.lanes == ["baseline"] * 3 + ["speculative"] * 3
    assert [server.most for server in scene.servers.values()] == [3, 3]
    assert {race.in_flight for race in scene.laps[0][2].races} == {3}


async def test_prompts_beyond_the_load_wait_for_the_next_wave() -> None:
    scene = Scene()
    await scene.run(plan(item("x", "a", "b", "c", "d"), loads=(2,), repeats=1))
    assert scene.lanes == ["baseline", "baseline", "speculative", "speculative"] * 2
    assert [server.most for server in scene.servers.values()] == [2, 2]
    assert [race.prompt for race in scene.laps[0][2].races] == ["a", "b", "c", "d"]


async def test_a_lane_that_cannot_name_its_model_holds_nobody_up() -> None:
    scene = Scene(model=UpstreamError("model_not_found", "The server serves no model"))
    assert await scene.run(plan(loads=(3,), repeats=1)) is None
    assert scene.lanes == ["speculative"] * 3
    assert [race.status for race in scene.laps[0][2].races] == ["partial"] * 3


async def test_counters_are_read_for_a_single_race_and_never_under_load() -> None:
    scene = Scene()
    await scene.run(plan(loads=(2,), repeats=1))
    assert scene.servers["speculative"].scrapes == 0
    await scene.run(plan(loads=(1,), repeats=1))
    assert scene.servers["speculative"].scrapes > 0


def at_work(*events: Any) -> LaneBoard:
    lane = LaneBoard("baseline")
    for event in events:
        lane.apply(event)
    return lane


def test_a_lane_is_at_work_from_its_first_request_to_its_last_token() -> None:
    one = at_work(sent("baseline", 10.0), chunk("baseline", 30.0), chunk("baseline", 90.0), ended("baseline", 95.0))
    two = at_work(sent("baseline", 12.0), chunk("baseline", 110.0), ended("baseline", 111.0))
    silent = at_work(sent("baseline", 12.0), ended("baseline", 50.0, "failed"))
    assert busy_ms([one, two]) == 100.0
    assert busy_ms([one]) == 80.0
    assert busy_ms([one, silent]) is None


# ------------------------------------------------------------------------------------------------ trouble
async def test_a_lane_that_fails_spoils_its_lap_only_while_its_server_answers() -> None:
    scene = Scene((tok("a"), BREAK))
    assert await scene.run(plan(repeats=3)) is None
    assert [lap.finished for _, _, lap in scene.laps] == [False] * 3
    assert scene.servers["baseline"].probes == 3
    assert scene.servers["speculative"].probes == 0, "a lane that finished is not asked"


async def test_a_server_that_is_gone_ends_the_sweep_with_the_reason() -> None:
    down = EndpointState(lane="baseline", status="down", detail="Nothing listens there. Start it.")
    scene = Scene((tok("a"), BREAK), told=down)
    why = await scene.run(plan(item("a"), item("b"), repeats=3))
    assert why == "the baseline server does not answer any more. Nothing listens there. Start it."
    assert len(scene.laps) == 1
    assert scene.laps[0][2].races[0].lanes["speculative"].status == "finished", "its lap is kept"
