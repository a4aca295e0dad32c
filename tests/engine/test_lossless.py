"""``check --lossless`` against real vLLM: the repaired pair passes, and the fault that it was built for is found.

vLLM 0.32.0 on a CPU samples drafted tokens with temperature, top-p and top-k out of uninitialised memory. The plugin in
deploy/engine/vllm-shim repairs that; here one more speculative server runs without it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest

from app.ops.engines import cache_folder, load_profile, server_command
from app.ops.machine import look
from app.ops.processes import KEEPER, engine_environment
from app.race.endpoint import parse_endpoint
from app.race.lane import LaneServer
from app.race.lossless import Lossless
from app.race.lossless_report import lines
from app.race.sampling import check_lossless
from app.race.types import LaneName
from app.race.upstream import Timeouts, Upstream
from tests.engine.conftest import RealPair
from tests.test_cli import free

BOOT_S = 240.0


@pytest.fixture(scope="module")
def unrepaired(real_pair: RealPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The profile's speculative server without the plugin, beside the pair. Its keeper ends it with us."""
    log: Path = tmp_path_factory.mktemp("unrepaired") / "log"
    machine, port = look(), free()
    command = server_command(
        load_profile("cpu"), "speculative", port=port, cache_dir=cache_folder(), allowed_cpus=machine.cpus
    )
    keeper = [sys.executable, "-I", str(KEEPER), "--cpus", ",".join(map(str, command.cpus)), "--grace", "3.0", "--"]
    env = engine_environment(command.env | {"VLLM_PLUGINS": "none"})
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*keeper, *command.argv], env=env, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            root = f"http://127.0.0.1:{port}"
            _wait(process, root, log)
            yield root
        finally:
            assert process.stdin is not None
            process.stdin.close()  # the keeper reads the end of file and ends the server's group
            process.wait(30)


def _wait(process: subprocess.Popen[bytes], root: str, log: Path) -> None:
    end = time.monotonic() + BOOT_S
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx2.get(f"{root}/health", timeout=5, trust_env=False).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(0.5)
    pytest.fail("the server without the plugin did not start:\n" + log.read_text()[-3000:], pytrace=False)


def checked(baseline: str, speculative: str, samples: int) -> Lossless:
    roots: dict[LaneName, str] = {"baseline": baseline, "speculative": speculative}

    async def run() -> Lossless:
        lanes: dict[LaneName, LaneServer] = {
            lane: LaneServer(lane, Upstream(parse_endpoint(lane, root), Timeouts(stall_s=60)))
            for lane, root in roots.items()
        }
        try:
            return await check_lossless(lanes, samples=samples)
        finally:
            for lane in lanes.values():
                await lane.upstream.close()

    result = anyio.run(run)
    print("\n".join(lines(result)))
    return result


def test_the_repaired_pair_passes(real_pair: RealPair) -> None:
    result = checked(real_pair.baseline, real_pair.speculative, samples=60)
    if result.verdict == "difference":  # once in a hundred, without a fault: that is what the level means
        result = checked(real_pair.baseline, real_pair.speculative, samples=60)
    assert result.verdict == "no_difference"
    assert (result.samples, result.unit, result.tests) == (180, "token", 27)
    assert result.drafts is not None
    assert result.drafts.acceptance_rate is not None
    assert result.drafts.acceptance_rate > 0.2
    assert result.drafts.decided is not None
    assert result.drafts.decided > 0.4  # most of what was sampled went through the rejection sampler


def test_the_pair_without_the_plugin_is_flagged(real_pair: RealPair, unrepaired: str) -> None:
    result = checked(real_pair.baseline, unrepaired, samples=40)
    assert result.verdict == "difference"
    assert result.flagged >= 2
    assert all(one.token != 1 for one in result.worst if one.corrected < result.alpha)  # the first token has no draft
    assert result.drafts is not None
    assert result.drafts.acceptance_rate is not None
    assert result.drafts.acceptance_rate < 0.2
    assert result.greedy is not None
    assert result.greedy.identical >= 2  # at temperature 0 nothing of it shows
