"""A warm-up: a few tokens that count nowhere, in a place of its own in the queue."""

from __future__ import annotations

from typing import Any

import anyio
import structlog

from app.race.failures import UpstreamError
from app.race.hub import Hub
from app.race.run import Run
from app.race.warm_up import WARM_UP
from tests.race.helpers import FIN, FakeRunner, Memory, end_of, hub_of, spec, tok, total, until

ANSWER = (tok("a"), tok("b"), FIN, total(2))


def held(*more: Any) -> tuple[FakeRunner, anyio.Event]:
    """A server that answers when it is let go."""
    gate = anyio.Event()
    return FakeRunner(gate, *ANSWER, *more), gate


async def test_both_servers_are_asked_for_a_few_tokens_and_nothing_is_kept() -> None:
    base, other, memory = FakeRunner(*ANSWER), FakeRunner(*ANSWER), Memory()
    hub = hub_of(base, other, memory)
    run = hub.warm_up()
    assert hub.warming
    await end_of(run)
    assert (base.prompts, other.prompts) == ([WARM_UP.prompt], [WARM_UP.prompt])
    assert WARM_UP.sampling.max_tokens <= 16
    assert (memory.metas, memory.events, memory.summaries) == ({}, {}, {})
    assert hub.get(run.meta.id) is None
    assert not hub.ended
    assert (hub.racing, hub.warming) == (False, False)


async def test_a_warm_up_waits_for_the_race_before_it_and_the_race_after_waits_for_it() -> None:
    base, gate = held()
    hub = hub_of(base, FakeRunner(*ANSWER))
    first = hub.start(spec("first"))
    warming = hub.warm_up()
    after = hub.start(spec("after"))
    assert (warming.board.position, after.board.position) == (1, 2)
    await until(lambda: base.prompts)
    assert base.prompts == ["first"]
    gate.set()
    await end_of(after)
    assert base.prompts == ["first", WARM_UP.prompt, "after"]
    assert [run.board.status for run in (first, after)] == ["finished", "finished"]


async def test_it_has_the_pair_to_itself_also_where_several_races_may_run() -> None:
    base, gate = held()
    hub = hub_of(base, FakeRunner(*ANSWER), races_at_once=4)
    first = hub.start(spec("first"))
    hub.warm_up()
    late = hub.start(spec("late"))
    await until(lambda: base.prompts)
    assert (base.prompts, late.board.position) == (["first"], 2)
    gate.set()
    await end_of(late)
    await end_of(first)
    assert base.prompts == ["first", WARM_UP.prompt, "late"]


async def test_asking_twice_warms_up_once_and_asking_later_again() -> None:
    base, gate = held()
    hub = hub_of(base, FakeRunner(*ANSWER))
    one = hub.warm_up()
    assert hub.warm_up() is one
    gate.set()
    await end_of(one)
    await end_of(hub.warm_up())
    assert base.prompts == [WARM_UP.prompt] * 2


async def test_a_server_that_fails_to_warm_up_leaves_the_pair_free_and_says_why_in_the_log() -> None:
    base = FakeRunner(UpstreamError("connection_refused", "Nobody there"))
    hub = hub_of(base, FakeRunner(*ANSWER, RuntimeError("ours")))
    with structlog.testing.capture_logs() as logged:
        await end_of(hub.warm_up())
    assert {entry["event"] for entry in logged} == {"warm-up failed", "warm-up failed unexpectedly"}
    assert (hub.racing, hub.warming) == (False, False)


async def test_a_full_queue_and_an_app_that_stops_refuse_a_warm_up_too() -> None:
    base, gate = held()
    hub = hub_of(base, FakeRunner(*ANSWER), queue_limit=1)
    hub.start(spec())
    hub.start(spec())
    assert _refusal(hub) == "race"
    gate.set()
    await hub.close()
    assert _refusal(hub) == "warm-up"


def _refusal(hub: Hub) -> str | None:
    from app.errors import Busy

    try:
        hub.warm_up()
    except Busy as busy:
        return busy.field
    return None


async def test_closing_ends_a_warm_up_that_runs_and_one_that_waits() -> None:
    for waits in (False, True):
        base, _ = held()
        hub = hub_of(base, FakeRunner(*ANSWER))
        if waits:
            hub.start(spec())
        run: Run = hub.warm_up()
        await until(lambda runner=base: runner.prompts)
        await hub.close()
        assert (run.ended, hub.racing) == (True, False)
        assert base.left == 1
