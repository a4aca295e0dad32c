"""The pair: both start, one's crash never touches the other, trouble is said in words, nothing is left behind."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from app.errors import EngineError
from app.ops.locks import PORTS_TRIED, Port, port_is_free
from app.ops.profiles import Profile
from app.ops.supervisor import Pair, Patience
from app.race.types import LANES, LaneIdentity, LaneName
from tests.ops.helpers import ENV, HASTY, MACHINE, alive, environment_of, fake_profile, starts, until, wait_until


@asynccontextmanager
async def running(
    profile: Profile, folder: Path, *, patience: Patience = HASTY, pair: Pair | None = None
) -> AsyncGenerator[Pair]:
    pair = pair or Pair(profile, cache_dir=folder / "cache", patience=patience, machine=MACHINE)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pair.run)
        try:
            yield pair
        finally:
            tasks.cancel_scope.cancel()


def _phase(pair: Pair, lane: LaneName) -> str:
    return pair.progress(lane).phase


async def _both_ready(pair: Pair) -> None:
    await until(lambda: all(_phase(pair, lane) == "ready" for lane in LANES), "both are ready")


async def test_both_become_ready_and_end_with_the_block(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path)
    async with running(profile, tmp_path) as pair:
        await _both_ready(pair)
        for lane in LANES:
            progress = pair.progress(lane)
            assert progress.detail == "ready"
            assert progress.restarts == 0
            assert progress.log_tail[-1] == "INFO:     Application startup complete."
            assert pair.base_url(lane) == f"http://127.0.0.1:{profile.lane(lane).port}"
            assert "version 0.32.0" in pair.log_path(lane).read_text(encoding="utf-8")
        assert pair.vllm_version == "0.32.0"
        assert pair.hardware == "1 vCPU Test, 24 GB, no GPU"
        assert pair.identity("speculative") == LaneIdentity(model="fake", method="ngram", num_speculative_tokens=4)
        took_s = pair.progress("baseline").elapsed_s
        await anyio.sleep(0.1)
        assert pair.progress("baseline").elapsed_s == took_s
        pids = [starts(tmp_path, profile.lane(lane).port)[0][0] for lane in LANES]
        assert all(map(alive, pids))
    assert not any(map(alive, pids))
    assert {_phase(pair, lane) for lane in LANES} == {"stopped"}


async def test_the_app_warms_up_before_a_lane_is_ready(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path)
    pair = Pair(profile, cache_dir=tmp_path / "cache", patience=HASTY, machine=MACHINE)
    asked: list[tuple[LaneName, str, str]] = []

    async def warm_up(lane: LaneName, base_url: str) -> None:
        asked.append((lane, base_url, _phase(pair, lane)))
        if lane == "speculative":
            raise RuntimeError("no tokens came")

    pair.warm_up = warm_up
    async with running(profile, tmp_path, pair=pair):
        await _both_ready(pair)
    assert sorted(asked) == [(lane, pair.base_url(lane), "warming_up") for lane in LANES]


async def test_a_failed_warm_up_is_said_and_costs_nothing_else(tmp_path: Path) -> None:
    async def warm_up(lane: LaneName, base_url: str) -> None:
        if lane == "baseline":
            await anyio.sleep_forever()
        raise RuntimeError("no tokens came")

    patience = msgspec.structs.replace(HASTY, warm_up_s=0.2)
    profile = fake_profile(tmp_path)
    pair = Pair(profile, cache_dir=tmp_path / "cache", patience=patience, machine=MACHINE, warm_up=warm_up)
    async with running(profile, tmp_path, pair=pair):
        await _both_ready(pair)
        assert pair.progress("speculative").detail == "ready, but the warm-up failed: RuntimeError: no tokens came"
        assert pair.progress("baseline").detail == "ready, but the warm-up failed: it took longer than 0 s"


async def test_a_killed_server_comes_back_and_the_other_never_notices(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path)
    async with running(profile, tmp_path) as pair:
        await _both_ready(pair)
        port = profile.speculative.port
        os.kill(starts(tmp_path, port)[0][0], signal.SIGKILL)
        await until(lambda: pair.progress("speculative").restarts == 1, "a restart")
        await _both_ready(pair)
        assert len(starts(tmp_path, port)) == 2
        assert len(starts(tmp_path, profile.baseline.port)) == 1
        assert pair.progress("baseline").restarts == 0


async def test_a_crash_loop_backs_off_and_is_capped(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path, speculative="crash")
    patience = msgspec.structs.replace(HASTY, first_s=0.2, cap_s=0.8)
    async with running(profile, tmp_path, patience=patience) as pair:
        await until(lambda: len(starts(tmp_path, profile.speculative.port)) >= 5, "five starts", within_s=30)
        assert pair.progress("baseline").restarts == 0
    times = [at for _, at in starts(tmp_path, profile.speculative.port)]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    # Each gap holds a life of at least 0.3 s and a pause of 0.2, 0.4, 0.8, 0.8 s.
    assert all(gap >= 0.3 + pause for gap, pause in zip(gaps, (0.2, 0.4, 0.8, 0.8), strict=False))


async def test_back_off_doubles_up_to_the_cap() -> None:
    patience = Patience()
    assert [patience.back_off_s(n) for n in (1, 2, 3, 6, 7, 1000)] == [1, 2, 4, 32, 60, 60]


async def test_starts_that_fail_end_in_failed_with_the_cause_and_are_tried_again(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path, speculative="refuse refuse refuse serve")
    async with running(profile, tmp_path) as pair:
        await until(lambda: _phase(pair, "speculative") == "failed", "it is given up for now")
        progress = pair.progress("speculative")
        assert progress.detail.startswith("start 3 failed: ValueError: no memory for the cache blocks")
        assert "Next try in" in progress.detail
        await _both_ready(pair)
        assert pair.progress("speculative").restarts == 3


async def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path)
    engine = msgspec.structs.replace(profile.engine, command=("/nowhere/vllm", "serve"))
    profile = msgspec.structs.replace(profile, engine=engine)
    async with running(profile, tmp_path) as pair:
        await until(lambda: _phase(pair, "baseline") == "failed", "it fails")
        assert "cannot start /nowhere/vllm: No such file or directory" in pair.progress("baseline").detail


async def test_a_lane_whose_log_cannot_be_written_is_no_end_of_the_other(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path)
    pair = Pair(profile, cache_dir=tmp_path / "cache", patience=HASTY, machine=MACHINE)
    pair.log_path("baseline").mkdir(parents=True)
    async with running(profile, tmp_path, pair=pair):
        await until(lambda: _phase(pair, "speculative") == "ready", "the other is ready")
        await until(lambda: "could not be started: Is a directory" in pair.progress("baseline").detail, "it is said")


async def test_a_server_that_never_comes_up_is_ended_and_started_again(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path)
    engine = msgspec.structs.replace(profile.engine, command=(sys.executable, "-c", "import time; time.sleep(600)"))
    profile = msgspec.structs.replace(profile, engine=engine)
    async with running(profile, tmp_path, patience=msgspec.structs.replace(HASTY, start_s=0.3)) as pair:
        await until(lambda: pair.progress("baseline").restarts >= 1, "it is started again")
        await until(lambda: "not up after 0 s" in pair.progress("baseline").detail, "the cause is said")


async def test_in_turn_the_second_starts_when_the_first_is_up(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path, boot="in_turn")
    async with running(profile, tmp_path) as pair:
        await until(lambda: bool(starts(tmp_path, profile.baseline.port)), "the first starts")
        assert pair.progress("speculative").detail == "waits until the other server is up"
        assert not starts(tmp_path, profile.speculative.port)
        await _both_ready(pair)


async def test_in_turn_a_first_that_fails_lets_the_second_start(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path, boot="in_turn", baseline="refuse")
    async with running(profile, tmp_path) as pair:
        await until(lambda: _phase(pair, "speculative") == "ready", "the second is ready")


async def test_elapsed_goes_on_in_silent_stretches(tmp_path: Path) -> None:
    now = [0]
    profile = fake_profile(tmp_path)
    pair = Pair(profile, cache_dir=tmp_path / "cache", patience=HASTY, machine=MACHINE, clock=lambda: now[0])
    now[0] = 12_500_000_000
    assert pair.progress("baseline").elapsed_s == 12.5


async def test_a_taken_port_gives_way_to_the_next_free_one(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path)
    with socket.create_server(("127.0.0.1", profile.baseline.port)):
        pair = Pair(profile, cache_dir=tmp_path / "cache", machine=MACHINE)
        assert pair.base_url("baseline") != f"http://127.0.0.1:{profile.baseline.port}"


async def test_two_pairs_with_one_cache_never_share_a_port(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path)
    pairs = [Pair(profile, cache_dir=tmp_path / "cache", machine=MACHINE) for _ in range(2)]
    assert len({pair.base_url(lane) for pair in pairs for lane in LANES}) == 4


def test_no_free_port_at_all_names_it_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.ops.locks.port_is_free", lambda _: False)
    with pytest.raises(EngineError) as caught:
        Port(8101, tmp_path)
    assert caught.value.field == "port 8101"
    assert str(PORTS_TRIED - 1) in caught.value.reason
    assert "profile" in caught.value.remedy


async def test_a_port_taken_later_is_named_and_waited_for(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path)
    pair = Pair(profile, cache_dir=tmp_path / "cache", patience=HASTY, machine=MACHINE)
    port = profile.baseline.port
    with socket.create_server(("127.0.0.1", port)):
        assert not port_is_free(port)
        async with running(profile, tmp_path, pair=pair):
            await until(lambda: f"port {port} is in use" in pair.progress("baseline").detail, "it is said")
            assert _phase(pair, "baseline") in ("restarting", "failed")


async def test_a_profile_that_cannot_run_here_says_why_and_starts_nothing(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path)
    mac = msgspec.structs.replace(MACHINE, system="Darwin")
    pair = Pair(profile, cache_dir=tmp_path / "cache", patience=Patience(), machine=mac)
    async with running(profile, tmp_path, pair=pair):
        await until(lambda: _phase(pair, "baseline") == "failed", "it is said")
        assert pair.progress("speculative").detail.startswith("cannot run on this machine: vLLM runs on Linux")
    assert not starts(tmp_path, profile.baseline.port)


async def test_stubborn_servers_and_their_children_are_ended_in_time(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path, baseline="stubborn", speculative="stubborn")
    async with running(profile, tmp_path) as pair:
        await _both_ready(pair)
        pids = [starts(tmp_path, profile.lane(lane).port)[0][0] for lane in LANES]
        pids += [int((tmp_path / f"child-{profile.lane(lane).port}").read_text()) for lane in LANES]
        assert all(map(alive, pids))
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert not any(map(alive, pids))


async def test_servers_get_the_profiles_variables_and_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    profile = fake_profile(tmp_path)
    async with running(profile, tmp_path) as pair:
        await _both_ready(pair)
        env = environment_of(starts(tmp_path, profile.baseline.port)[0][0])
    assert env["FAKE_FOLDER"] == str(tmp_path)
    assert "OPENAI_API_KEY" not in env


APP = """
import sys, anyio
from pathlib import Path
from app.ops.profiles import load_profile
from app.ops.supervisor import Pair
from tests.ops.helpers import HASTY, MACHINE
async def main():
    await Pair(load_profile(sys.argv[1]), cache_dir=Path(sys.argv[2]), patience=HASTY, machine=MACHINE).run()
anyio.run(main)
"""


def test_nothing_is_left_when_the_app_gets_sigkill(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path, baseline="stubborn")
    command = [sys.executable, "-c", APP, str(tmp_path / "fake.toml"), str(tmp_path / "cache")]
    app = subprocess.Popen(command, env=ENV, stdout=subprocess.DEVNULL)
    child = tmp_path / f"child-{profile.baseline.port}"
    wait_until(lambda: child.exists() and bool(starts(tmp_path, profile.speculative.port)), "both servers start")
    time.sleep(0.2)
    pids = [starts(tmp_path, profile.lane(lane).port)[0][0] for lane in LANES] + [int(child.read_text())]
    assert all(map(alive, pids))
    app.kill()
    app.wait()
    wait_until(lambda: not any(map(alive, pids)), "everything has ended")
    wait_until(lambda: port_is_free(profile.baseline.port), "the port is free")
