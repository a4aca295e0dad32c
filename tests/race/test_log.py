"""The log of a race: ids without gaps, cursors that never miss or repeat, many readers, an end that everybody sees."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from app.race.log import Log
from tests.race.helpers import chunk

pytestmark = pytest.mark.anyio


def event(n: int) -> object:
    return chunk("baseline", float(n))


async def test_ids_count_from_one_without_a_gap() -> None:
    log = Log()
    assert log.head == 0
    assert [log.append(event(n)) for n in range(5)] == [1, 2, 3, 4, 5]  # type: ignore[arg-type]
    assert log.head == 5
    assert [e.t_ms for e in log.between(2)] == [2, 3, 4]
    assert [e.t_ms for e in log.between(2, 4)] == [2, 3]
    assert [e.t_ms for e in log.between(-3, 1)] == [0]
    assert list(log.between(9)) == list(log.between(4, 2)) == []


async def test_nothing_is_appended_after_the_end() -> None:
    log = Log()
    log.close()
    assert log.closed
    with pytest.raises(RuntimeError):
        log.append(event(0))  # type: ignore[arg-type]


@pytest.mark.parametrize("after", [-5, 0, 1, 3, 4])
async def test_a_reader_gets_every_event_after_its_cursor_once(after: int) -> None:
    log = Log()
    for n in range(4):
        log.append(event(n))  # type: ignore[arg-type]
    log.close()
    found = [(i, e.t_ms) async for i, e in log.follow(after)]
    assert found == [(i, i - 1) for i in range(max(after, 0) + 1, 5)]


async def test_a_reader_far_beyond_the_head_ends_with_the_log() -> None:
    log = Log()
    log.append(event(0))  # type: ignore[arg-type]
    log.close()
    with anyio.fail_after(1):
        assert [i async for i, _ in log.follow(1000)] == []


async def test_readers_of_every_pace_see_the_same_log() -> None:
    log = Log()
    seen: dict[int, list[int]] = {}

    async def read(name: int) -> None:
        seen[name] = []
        async for event_id, one in log.follow():
            assert one.t_ms == event_id - 1
            seen[name].append(event_id)
            if name % 3 == 1:
                await anyio.lowlevel.checkpoint()
            elif name % 3 == 2 and event_id % 20 == 0:
                await anyio.sleep(0.003)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for name in range(60):
                group.start_soon(read, name)
            for n in range(200):
                log.append(event(n))  # type: ignore[arg-type]
                if n % 7 == 0:
                    await anyio.lowlevel.checkpoint()
            log.close()
    assert all(ids == list(range(1, 201)) for ids in seen.values())
    assert len(seen) == 60


async def test_waiting_ends_with_an_event_or_with_the_log() -> None:
    log = Log()
    answers: list[bool] = []

    async def wait(after: int) -> None:
        answers.append(await log.beyond(after))

    with anyio.fail_after(2):
        async with anyio.create_task_group() as group:
            group.start_soon(wait, 0)
            await anyio.sleep(0.01)
            assert answers == []
            log.append(event(0))  # type: ignore[arg-type]
        assert answers == [True]
        async with anyio.create_task_group() as group:
            group.start_soon(wait, 1)
            await anyio.sleep(0.01)
            log.close()
    assert answers == [True, False]


async def test_a_reader_that_leaves_does_not_hold_up_the_others() -> None:
    log = Log()
    found: list[int] = []

    async def read() -> None:
        async for event_id, _ in log.follow():
            found.append(event_id)

    with anyio.fail_after(2):
        async with anyio.create_task_group() as group:
            leaving = anyio.CancelScope()

            async def leave() -> None:
                with leaving:
                    await log.beyond(0)

            group.start_soon(leave)
            group.start_soon(read)
            await anyio.sleep(0.01)
            leaving.cancel()
            await anyio.sleep(0.01)
            log.append(event(0))  # type: ignore[arg-type]
            log.close()
    assert found == [1]


async def test_readers_that_come_and_go_in_a_silent_race_leave_nothing_behind() -> None:
    log = Log()
    for _ in range(50):
        with anyio.move_on_after(0.001):
            await log.beyond(0)
    assert len([future for future in log._waiting if not future.done()]) == 0
    assert len(log._waiting) <= 1
