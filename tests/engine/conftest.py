"""One real pair of vLLM servers for all engine tests: booted once, by the supervisor itself, on the CPU.

Everything heavy stays in the user's cache folder (SPECRACE_CACHE names another), so only the first run on a machine
installs. These tests never skip: where the pair cannot run they fail and say why.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from msgspec import Struct

from app.ops.engines import cache_folder, load_profile
from app.ops.supervisor import Pair
from app.race.types import LANES, EngineProgress

HERE = Path(__file__).parent
FAILED_S = 90.0
"""A network or a memory that is short now may do in a minute: the supervisor tries again, so do we."""
FIRST_START_S = 1200.0
"""Installing, preparing weights and booting on two slow cores; a warm cache takes about half a minute."""


class RealPair(Struct, frozen=True, kw_only=True):
    """Both servers, ready. URLs are roots, without /v1; ``pair`` knows their phases and where their logs are."""

    baseline: str
    speculative: str
    pair: Pair


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder is an engine test."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("engine")


@pytest.fixture(scope="session")
def real_pair() -> Iterator[RealPair]:
    """The pair of the profile ``cpu``, ready to race. It runs on a loop of its own: no test can block its logs."""
    with start_blocking_portal() as portal:
        pair = portal.call(lambda: Pair(load_profile("cpu"), cache_dir=cache_folder()))
        running = portal.start_task_soon(pair.run)
        try:
            _wait_until_ready(pair)
            yield RealPair(baseline=pair.base_url("baseline"), speculative=pair.base_url("speculative"), pair=pair)
        finally:
            running.cancel()
            with suppress(CancelledError):
                running.result(timeout=30)


def _wait_until_ready(pair: Pair) -> None:
    fine_at = time.monotonic()
    end = fine_at + FIRST_START_S
    while time.monotonic() < end:
        progress = {lane: pair.progress(lane) for lane in LANES}
        if all(one.phase == "ready" for one in progress.values()):
            return
        failed = [f"{lane}: {_told(one)}" for lane, one in progress.items() if one.phase == "failed"]
        if not failed:
            fine_at = time.monotonic()
        elif time.monotonic() > fine_at + FAILED_S:
            pytest.fail("the real pair cannot run:\n" + "\n".join(failed), pytrace=False)
        time.sleep(0.2)
    states = [f"{lane}: {_told(pair.progress(lane))}" for lane in LANES]
    pytest.fail(f"the real pair was not ready after {FIRST_START_S:.0f} s:\n" + "\n".join(states), pytrace=False)


def _told(progress: EngineProgress) -> str:
    return "\n    ".join([f"{progress.phase}, {progress.detail}", *progress.log_tail])
