"""What could bend a figure from outside: a stepped wall clock, and other people's races (P43.4, P43.5)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.blackbox.app import LANES, ROOT, App, Run, check_run, running
from tests.blackbox.test_timing import as_the_server_did_it
from tests.fakes.vllm import FakeThread, FakeVLLM, paced

STEPPING = ROOT / "tests" / "fakes" / "stepping_clock"
OTHERS = 30


@pytest.fixture(scope="module")
def hall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[App, FakeVLLM, FakeVLLM, Path]]:
    flag = tmp_path_factory.mktemp("clock") / "step"
    path = os.pathsep.join([str(STEPPING), str(ROOT)])
    env = {"PYTHONPATH": path, "SPECRACE_TEST_CLOCK": str(flag), "SPECRACE_RACES_AT_ONCE": str(OTHERS + 1)}
    with FakeThread() as thread:
        fakes = thread.start(FakeVLLM(model="b")), thread.start(FakeVLLM(model="s", speculative=4))
        for fake, per_chunk in zip(fakes, (1, 3), strict=True):
            fake.on("[crowd]", lambda _, n=per_chunk: paced(20 * n, every_s=0.15, per_chunk=n))
        with running(App(fakes[0].url, fakes[1].url, env=env)) as (app,):
            yield app, *fakes, flag


def fair(hall: tuple[App, FakeVLLM, FakeVLLM, Path], during: Any) -> Run:
    """A race while ``during`` goes on, with the figures of the servers' own clocks; a busy machine gets five tries."""
    app, *fakes, _ = hall
    for left in (4, 3, 2, 1, 0):
        for fake, per_chunk in zip(fakes, (1, 3), strict=True):
            fake.on("[mine]", lambda _, n=per_chunk: paced(90, every_s=0.025, per_chunk=n, ttft_s=0.2))

        async def both() -> Run:
            async with anyio.create_task_group() as group:
                group.start_soon(during)
                await anyio.sleep(0.3)
                run = await app.race_async("[mine] on your marks", {})
                group.cancel_scope.cancel()
            return run

        run = anyio.run(both)
        check_run(run)
        try:
            for lane, fake in zip(LANES, fakes, strict=True):
                as_the_server_did_it(run.race["lanes"][lane], fake.posts_with("[mine]")[-1])
        except AssertionError:
            if not left:
                raise
        else:
            return run
    raise AssertionError("unreachable")


def test_p43_thirty_other_races_do_not_bend_the_figures(hall: tuple[App, FakeVLLM, FakeVLLM, Path]) -> None:
    async def crowd() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(OTHERS):
                group.start_soon(hall[0].race_async, "[crowd] go", {})

    run = fair(hall, crowd)
    assert run.race["in_flight"] > 1, "nobody else raced"
    assert run.comparison["speedup"] == pytest.approx(2.6, rel=0.15)  # 90 / 2.43 s against 90 / 0.93 s


def test_p43_a_wall_clock_that_steps_back_changes_no_figure(hall: tuple[App, FakeVLLM, FakeVLLM, Path]) -> None:
    app, *_, flag = hall
    flag.unlink(missing_ok=True)
    before = app.race("before the step")

    async def step() -> None:
        await anyio.sleep(0.8)
        flag.touch()
        await anyio.sleep_forever()

    run = fair(hall, step)
    after = app.race("after the step")
    at = [datetime.fromisoformat(one.race["created_at"]) for one in (before, run, after)]
    assert (at[2] - at[1]).total_seconds() < 0, "the clock of the app was never stepped"
    times = [event["t_ms"] for event in run.events]
    assert times == sorted(times)
    assert run.race["queue_ms"] < 500
