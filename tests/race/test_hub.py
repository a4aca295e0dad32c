"""Who races when, who is stopped when nobody looks, and replays: same figures, recorded pace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import structlog
from anyio.lowlevel import checkpoint

from app.errors import Busy
from app.race import hub as hub_room
from app.race import replay as replay_room
from app.race.events import Event, RaceFinished, RaceQueued, RaceStarted
from app.race.hub import Hub
from app.race.run import Run
from app.race.summary import StoredRace, fold
from tests.race.helpers import (
    FIN,
    Clock,
    FakeRunner,
    Memory,
    chunk,
    end_of,
    ended,
    hub_of,
    over,
    sent,
    spec,
    started,
    stored,
    tok,
    total,
    until,
    usage,
)

pytestmark = pytest.mark.anyio
ANSWER = (tok("Hel"), tok("lo", 2), FIN, total(3))


class Gate(FakeRunner):
    """A server that answers one race after the other, each when the test says so."""

    def __init__(self) -> None:
        self.gates: list[anyio.Event] = []
        super().__init__(tok("a"), self._wait, FIN, total(1))

    async def _wait(self) -> None:
        self.gates.append(anyio.Event())
        await self.gates[-1].wait()


def positions(run: Run) -> list[int]:
    return [event.position for event in run.log.between(0) if isinstance(event, RaceQueued)]


def status_in_log(run: Run) -> str:
    last = run.log.between(0)[-1]
    assert isinstance(last, RaceFinished)
    return last.status


async def test_a_race_is_told_to_the_keeper_event_by_event() -> None:
    keeper = Memory()
    hub = hub_of(FakeRunner(*ANSWER), FakeRunner(*ANSWER), keeper)
    run = await end_of(hub.start(spec()))
    assert keeper.metas[run.meta.id] == run.meta
    assert keeper.events[run.meta.id] == list(enumerate(run.log.between(0), start=1))
    assert keeper.summaries[run.meta.id] == run.summary()
    assert run.summary().status == "finished"
    assert hub.ended == {"finished": 1}
    assert hub.racing is False


async def test_one_race_at_a_time_and_the_others_know_where_they_stand() -> None:
    base = Gate()
    hub = hub_of(base, FakeRunner(*ANSWER))
    runs = [hub.start(spec(f"race {n}")) for n in range(4)]
    await until(lambda: len(base.gates) == 1)
    assert [positions(run) for run in runs] == [[], [1], [2], [3]]
    assert [run.board.status for run in runs] == ["running", "queued", "queued", "queued"]
    assert (hub.waiting, hub.racing) == (3, True)
    base.gates[0].set()
    await until(lambda: len(base.gates) == 2)
    assert runs[0].board.status == "finished"
    assert [positions(run) for run in runs[1:]] == [[1], [2, 1], [3, 2]]
    for n in (1, 2, 3):
        await until(lambda n=n: len(base.gates) == n + 1)
        base.gates[n].set()
    for run in runs:
        await end_of(run)
    assert base.prompts == [f"race {n}" for n in range(4)]
    assert base.runs == 4
    # the wait is told apart from the figures
    waited = next(event for event in runs[3].log.between(0) if isinstance(event, RaceStarted))
    assert waited.queue_ms > 0
    assert waited.in_flight == 1


async def test_as_many_races_at_once_as_allowed() -> None:
    base = Gate()
    hub = hub_of(base, FakeRunner(*ANSWER), races_at_once=2)
    runs = [hub.start(spec()) for _ in range(3)]
    await until(lambda: len(base.gates) == 2)
    assert [run.board.status for run in runs] == ["running", "running", "queued"]
    assert runs[1].board.in_flight == 2
    for gate in base.gates:
        gate.set()
    await until(lambda: len(base.gates) == 3)
    base.gates[2].set()
    await end_of(runs[2])


async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    base = Gate()
    hub = hub_of(base, FakeRunner(*ANSWER), queue_limit=2)
    for _ in range(3):
        hub.start(spec())
        await checkpoint()
    with pytest.raises(Busy) as caught:
        hub.start(spec())
    assert caught.value.retry_after_s > 0
    assert caught.value.status == 429
    assert hub.waiting == 2
    await hub.close()


async def test_the_queue_limit_holds_for_requests_of_the_same_instant() -> None:
    base = Gate()
    hub = hub_of(base, FakeRunner(*ANSWER), queue_limit=2)
    admitted = 0
    for _ in range(10):
        try:
            hub.start(spec())
            admitted += 1
        except Busy:
            pass
    await until(lambda: len(base.gates) == 1)
    assert (admitted, hub.waiting) == (3, 2)
    await hub.close()


async def test_without_a_queue_a_free_pair_still_races() -> None:
    # SPECRACE_QUEUE_LIMIT=0: nobody waits, but a race is possible
    hub = hub_of(FakeRunner(*ANSWER), FakeRunner(*ANSWER), queue_limit=0)
    run = await end_of(hub.start(spec()))
    assert status_in_log(run) == "finished"


async def test_leaving_the_queue_moves_the_others_up() -> None:
    base = Gate()
    hub = hub_of(base, FakeRunner(*ANSWER))
    runs = [hub.start(spec(f"race {n}")) for n in range(4)]
    await until(lambda: len(base.gates) == 1)
    assert hub.stop(runs[1].meta.id)
    await end_of(runs[1])
    assert status_in_log(runs[1]) == "stopped"
    assert [positions(run) for run in runs[2:]] == [[2, 1], [3, 2]]
    base.gates[0].set()
    await until(lambda: len(base.gates) == 2)
    assert base.prompts == ["race 0", "race 2"]
    await hub.close()


async def test_stop_ends_a_running_race_and_frees_its_place() -> None:
    base = Gate()
    hub = hub_of(base, FakeRunner(tok("b"), 60.0))
    first, second = hub.start(spec("one")), hub.start(spec("two"))
    await until(lambda: len(base.gates) == 1)
    assert hub.stop(first.meta.id)
    await end_of(first)
    assert first.summary().status == "stopped"
    assert {lane.status for lane in first.summary().lanes.values()} == {"stopped"}
    await until(lambda: second.board.status == "running")
    assert not hub.stop("no such race")
    await hub.close()


async def test_a_race_stopped_before_it_began_still_ends() -> None:
    # start and stop in one turn of the loop, as with two clicks that arrive together
    keeper = Memory()
    hub = hub_of(Gate(), FakeRunner(*ANSWER), keeper)
    run = hub.start(spec())
    hub.stop(run.meta.id)
    await end_of(run, 1)
    assert status_in_log(run) == "stopped"
    assert run.meta.id in keeper.summaries


async def test_two_races_of_one_visitor_in_the_same_instant_leave_one() -> None:
    base = Gate()
    hub = hub_of(base, FakeRunner(*ANSWER))
    first, second = hub.start(spec("one"), owner="ann"), hub.start(spec("two"), owner="ann")
    await end_of(first, 1)
    await until(lambda: second.board.status == "running")
    assert hub.waiting == 0
    await hub.close()


async def test_a_visitors_new_race_replaces_the_one_left_running() -> None:
    base = Gate()
    hub = hub_of(base, FakeRunner(tok("b"), 60.0))
    old = hub.start(spec("old"), owner="ann")
    other = hub.start(spec("other"), owner="bob")
    script = hub.start(spec("script"))
    await until(lambda: len(base.gates) == 1)
    new = hub.start(spec("new"), owner="ann")
    await end_of(old)
    assert status_in_log(old) == "stopped"
    assert [run.log.closed for run in (other, script, new)] == [False, False, False]
    await hub.close()


async def test_a_visitor_whose_new_race_is_refused_keeps_the_old_one() -> None:
    base = Gate()
    hub = hub_of(base, FakeRunner(*ANSWER), queue_limit=1)
    running, waiting = hub.start(spec("running"), owner="ann"), hub.start(spec("waiting"), owner="bob")
    await until(lambda: len(base.gates) == 1)
    with pytest.raises(Busy):
        hub.start(spec("new"), owner="ann")
    await anyio.sleep(0.02)
    assert [run.log.closed for run in (running, waiting)] == [False, False]
    await hub.close()


async def test_a_visitor_in_the_queue_may_change_the_prompt_although_the_queue_is_full() -> None:
    base = Gate()
    hub = hub_of(base, FakeRunner(*ANSWER), queue_limit=1)
    hub.start(spec("running"))
    await until(lambda: len(base.gates) == 1)
    hub.start(spec("old"), owner="ann")
    await checkpoint()
    new = hub.start(spec("new"), owner="ann")
    await until(lambda: hub.waiting == 1)
    assert not new.log.closed
    await hub.close()


async def test_p42_a_double_click_is_one_race() -> None:
    base = Gate()
    hub = hub_of(base, FakeRunner(*ANSWER))
    first = hub.start(spec(), owner="ann", ticket="t1")
    await until(lambda: len(base.gates) == 1)
    assert hub.start(spec(), owner="ann", ticket="t1") is first
    assert not first.log.closed
    other = hub.start(spec(), owner="bob", ticket="t2")
    assert other is not first
    assert base.runs == 1
    await hub.close()


async def test_a_lane_that_raises_unexpectedly_does_not_take_the_other() -> None:
    hub = hub_of(FakeRunner(tok("a"), RuntimeError("ours")), FakeRunner(0.03, *ANSWER))
    with structlog.testing.capture_logs():
        run = await end_of(hub.start(spec()))
    summary = run.summary()
    assert summary.status == "partial"
    assert summary.lanes["speculative"].status == "finished"
    assert summary.lanes["baseline"].error is not None


async def test_a_race_that_breaks_unexpectedly_ends_and_frees_the_pair() -> None:
    def known() -> Any:
        raise RuntimeError("ours")

    runners: Any = {"baseline": FakeRunner(*ANSWER), "speculative": FakeRunner(*ANSWER)}
    from app.race.hub import Limits

    hub = Hub(runners, Memory(), Limits(), known)
    with structlog.testing.capture_logs() as logged:
        run = await end_of(hub.start(spec()))
    assert status_in_log(run) == "failed"
    assert hub.racing is False
    assert [entry["log_level"] for entry in logged] == ["error"]


# ------------------------------------------------------------------------------------------------ leaving
async def test_a_page_race_left_by_all_is_stopped_and_a_script_race_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = anyio.sleep
    monkeypatch.setattr(hub_room, "anyio", SimpleNamespace(sleep=lambda _: sleep(0.01)))  # looks around more often
    clock, base = Clock(), Gate()
    hub = hub_of(base, FakeRunner(tok("b"), 60.0), clock=clock, races_at_once=4)
    left, watched, script = hub.start(spec(), owner="ann"), hub.start(spec(), owner="bob"), hub.start(spec())
    visited = hub.start(spec(), owner="eve")
    await until(lambda: len(base.gates) == 4)
    async with anyio.create_task_group() as group:
        group.start_soon(hub.watch)
        with watched.watched():
            clock.move_ms(11_900)
            with visited.watched():
                assert hub.viewers == 2
            await anyio.sleep(0.05)
            assert not left.log.closed  # 11.9 s: somebody who reloads still finds it
            clock.move_ms(200)
            await end_of(left, 2)
        assert status_in_log(left) == "stopped"
        assert [run.log.closed for run in (watched, script, visited)] == [False, False, False]
        clock.move_ms(12_100)
        await end_of(watched, 2)
        await end_of(visited, 2)
        assert not script.log.closed
        group.cancel_scope.cancel()
    await hub.close()


async def test_a_race_that_is_over_is_forgotten_when_nobody_watches_it_any_more() -> None:
    clock = Clock()
    hub = hub_of(FakeRunner(*ANSWER), FakeRunner(*ANSWER), clock=clock)
    run = await end_of(hub.start(spec()))
    with run.watched():
        clock.move_ms(60_000)
        hub._sweep()
        assert hub.get(run.meta.id) is run
    hub._sweep()
    assert hub.get(run.meta.id) is run
    clock.move_ms(31_000)
    hub._sweep()
    assert hub.get(run.meta.id) is None


async def test_closing_ends_running_and_waiting_races_as_interrupted() -> None:
    base, keeper = Gate(), Memory()
    hub = hub_of(base, FakeRunner(tok("b"), 60.0), keeper)
    runs = [hub.start(spec()) for _ in range(3)]
    await until(lambda: len(base.gates) == 1)
    replayed = hub.replay(stored([started(), sent("baseline"), chunk("baseline", 60_000)]))
    await until(lambda: replayed.log.head == 2)
    with anyio.fail_after(2):
        await hub.close()
    assert [status_in_log(run) for run in (*runs, replayed)] == ["interrupted"] * 4
    assert all(keeper.summaries[run.meta.id].status == "interrupted" for run in runs)
    assert base.left == 1
    with pytest.raises(Busy) as caught:
        hub.start(spec())
    assert "restart" in str(caught.value)


async def test_closing_in_the_very_instant_of_a_start_ends_that_race_too() -> None:
    hub = hub_of(Gate(), FakeRunner(*ANSWER))
    run = hub.start(spec())
    with anyio.fail_after(2):
        await hub.close()
    await end_of(run, 1)
    assert status_in_log(run) == "interrupted"


async def test_closing_in_the_very_instant_of_a_replay_ends_it_too() -> None:
    hub = hub_of(FakeRunner(), FakeRunner())
    run = hub.replay(stored([started(), sent("baseline"), chunk("baseline", 60_000)]))
    with anyio.fail_after(2):
        await hub.close()
    await end_of(run, 1)
    assert status_in_log(run) == "interrupted"


async def test_forgetting_a_running_race_stops_it_first() -> None:
    base = Gate()
    hub = hub_of(base, FakeRunner(tok("b"), 60.0))
    run = hub.start(spec())
    await until(lambda: len(base.gates) == 1)
    await hub.forget(run.meta.id)
    assert run.log.closed
    assert hub.get(run.meta.id) is None
    assert base.left == 1
    await hub.forget("no such race")


# ------------------------------------------------------------------------------------------------ replay
def kept() -> list[Event]:
    return [
        RaceQueued(t_ms=0, position=1),
        started(2000),
        sent("baseline", 2001),
        sent("speculative", 2002, num_speculative_tokens=4),
        chunk("speculative", 2100, 1),
        chunk("baseline", 2120, 1),
        chunk("speculative", 2200, 5),
        chunk("baseline", 2320, 1),
        usage("speculative", 2201, 6),
        ended("speculative", 2202),
        usage("baseline", 2321, 2),
        ended("baseline", 2322),
        over(2330),
    ]


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replays sleep on a clock that the test owns: sleeping moves it."""
    clock = Clock()

    async def sleep(seconds: float) -> None:
        clock.move_ms(seconds * 1000)
        await checkpoint()

    monkeypatch.setattr(replay_room, "anyio", SimpleNamespace(sleep=sleep))
    return clock


async def test_a_replay_shows_the_figures_of_the_race_at_its_pace(by_hand: Clock) -> None:
    clock, began = by_hand, by_hand.ns
    hub = hub_of(FakeRunner(), FakeRunner(), clock=clock)
    race = stored(sorted(kept(), key=lambda event: event.t_ms), race_id="original")
    run = await end_of(hub.replay(race))
    assert list(run.log.between(0)) == race.events
    # the two seconds in the queue are not played again
    assert (clock.ns - began) / 1e6 == pytest.approx(2330 - 2000, abs=2)
    original, played = fold(race.events), run.board
    for lane in ("baseline", "speculative"):
        assert played.numbers(lane) == original.numbers(lane)  # type: ignore[arg-type]
    assert played.comparison(greedy=True) == original.comparison(greedy=True)
    assert run.meta.origin == "original"
    assert run.meta.id != "original"
    assert run.now_ms() == 2330  # stands still at the end


@pytest.mark.usefixtures("by_hand")
async def test_a_replay_is_neither_kept_nor_in_the_way() -> None:
    keeper, base = Memory(), Gate()
    hub = hub_of(base, FakeRunner(*ANSWER), keeper)
    live = hub.start(spec())
    await until(lambda: len(base.gates) == 1)
    run = hub.replay(stored(kept()))
    await end_of(run)
    assert set(keeper.metas) == {live.meta.id}
    assert not live.log.closed
    assert hub.ended == {}
    assert base.runs == 1
    await hub.close()


async def test_a_recording_without_an_end_is_ended_as_interrupted(by_hand: Clock) -> None:
    hub = hub_of(FakeRunner(), FakeRunner(), clock=by_hand)
    for events in (kept()[:-1], []):
        run = await end_of(hub.replay(stored(events)))
        assert status_in_log(run) == "interrupted"


async def test_a_replay_can_be_stopped() -> None:
    hub = hub_of(FakeRunner(), FakeRunner())
    run = hub.replay(stored([started(), sent("baseline"), chunk("baseline", 60_000)]))
    await until(lambda: run.log.head == 2)
    hub.stop(run.meta.id)
    await end_of(run)
    assert status_in_log(run) == "stopped"


async def test_a_visitors_new_replay_ends_the_one_before() -> None:
    hub = hub_of(FakeRunner(), FakeRunner())
    race: StoredRace = stored([started(), sent("baseline"), chunk("baseline", 60_000)])
    first = hub.replay(race, owner="ann")
    await until(lambda: first.log.head == 2)
    second = hub.replay(race, owner="ann")
    await until(lambda: second.log.head == 2)
    await end_of(first, 1)
    assert status_in_log(first) == "stopped"
    assert not second.log.closed
    await hub.close()
