"""P40: hundreds of runs that were cut or refused leave nothing behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx2 as httpx
import pytest

from tests.blackbox.app import TOKEN, App, Run, check_run, running
from tests.fakes.vllm import DONE, FIN, HANG, RESET, ROLE, SLEEP, TOK, USE, FakeThread, FakeVLLM, Reply

NORMAL = [ROLE, SLEEP(0.05), *[TOK("ab "), SLEEP(0.01)] * 20, FIN(), USE(20), DONE]
REFUSED = Reply.error(429, "Too many requests", "RateLimitError")
STOPPED, RESETS, REFUSALS = 150, 50, 100


@dataclass
class After:
    first: Run
    last: Run
    live_after_stops: int
    live_at_the_end: int
    stop_s: list[float]
    statuses: dict[str, list[str]]
    threads: tuple[int, int]
    files: tuple[int, int]
    posts: list[int]


def counts(app: App) -> tuple[int, int]:
    """Threads and open files of the app's process."""
    assert app.process is not None
    proc = Path(f"/proc/{app.process.pid}")
    return len(list((proc / "task").iterdir())), len(list((proc / "fd").iterdir()))


async def settled(fakes: list[FakeVLLM]) -> int:
    """Requests in progress at the fakes, once they have had a second to end."""
    limit = time.monotonic() + 1
    while any(fake.streaming for fake in fakes) and time.monotonic() < limit:  # noqa: ASYNC110 - they live elsewhere
        await anyio.sleep(0.02)
    return sum(fake.streaming for fake in fakes)


async def abandon(app: App, fakes: list[FakeVLLM]) -> tuple[list[float], dict[str, list[str]], int]:
    statuses: dict[str, list[str]] = {"cut": [], "reset": [], "refused": []}
    stop_s: list[float] = []
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=app.root, timeout=30, headers=headers) as client:

        async def until_two_tokens(events_url: str) -> None:
            async with client.stream("GET", events_url) as answer:
                seen = ""
                async for piece in answer.aiter_text():
                    seen += piece
                    if seen.count('"lane.chunk"') >= 2:
                        return

        async def one(kind: str, limit: anyio.CapacityLimiter) -> None:
            async with limit:
                created = (await client.post("/api/races", json={"prompt": f"[{kind}]", "max_tokens": 64})).json()
                if kind == "cut":
                    await until_two_tokens(created["events_url"])
                    began = time.perf_counter()
                    answer = await client.post(f"/api/races/{created['id']}/stop")
                    assert answer.status_code < 300, answer.text
                    stop_s.append(time.perf_counter() - began)
                with anyio.fail_after(20):
                    await client.get(created["events_url"])  # to its end
                statuses[kind].append((await client.get(f"/api/races/{created['id']}")).json()["status"])

        limit = anyio.CapacityLimiter(10)
        async with anyio.create_task_group() as group:
            for _ in range(STOPPED):
                group.start_soon(one, "cut", limit)
        live = await settled(fakes)
        async with anyio.create_task_group() as group:
            for kind, n in (("reset", RESETS), ("refused", REFUSALS)):
                for _ in range(n):
                    group.start_soon(one, kind, limit)
    return stop_s, statuses, live


@pytest.fixture(scope="module")
def after() -> Iterator[After]:
    with FakeThread() as thread:
        fakes = [thread.start(FakeVLLM(model="b", script=NORMAL)), thread.start(FakeVLLM(model="s", script=NORMAL))]
        for fake in fakes:
            fake.on("[cut]", [ROLE, TOK("one "), TOK("two "), HANG])
            fake.on("[reset]", [ROLE, TOK("one "), TOK("two "), RESET])
            fake.on("[refused]", REFUSED)
        with running(App(fakes[0].url, fakes[1].url, env={"SPECRACE_RACES_AT_ONCE": "10"})) as (app,):
            app.race("warm")
            first = app.race("first")
            before = counts(app)
            stop_s, statuses, live = anyio.run(abandon, app, fakes)
            last = app.race("last")
            now = counts(app)
            yield After(
                first=first,
                last=last,
                live_after_stops=live,
                live_at_the_end=anyio.run(settled, fakes),
                stop_s=stop_s,
                statuses=statuses,
                threads=(before[0], now[0]),
                files=(before[1], now[1]),
                posts=[len(fake.posts) for fake in fakes],
            )


def test_p40_the_first_token_comes_as_fast_as_before(after: After) -> None:
    check_run(after.first)
    check_run(after.last)
    assert after.last.status == "finished"
    for lane in ("baseline", "speculative"):
        first, last = (run.race["lanes"][lane]["ttft_ms"] for run in (after.first, after.last))
        assert 45 <= last <= first + 50


def test_p40_every_abandoned_run_came_to_its_end(after: After) -> None:
    assert after.statuses == {
        "cut": ["stopped"] * STOPPED,
        "reset": ["failed"] * RESETS,
        "refused": ["failed"] * REFUSALS,
    }


def test_p40_nothing_was_asked_for_twice(after: After) -> None:
    assert after.posts == [STOPPED + RESETS + REFUSALS + 3] * 2, "a refused or broken request was repeated"


def test_p40_stopping_ends_the_upstream_requests(after: After) -> None:
    assert after.live_after_stops == 0, "servers go on generating for nobody"
    assert after.live_at_the_end == 0
    assert sorted(after.stop_s)[len(after.stop_s) // 2] < 0.5


def test_p40_nothing_is_left_behind(after: After) -> None:
    assert after.threads[1] <= after.threads[0] + 15, "threads may grow with races at once, not with races"
    assert after.files[1] <= after.files[0] + 25, "connections or files stay open"
