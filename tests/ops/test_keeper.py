"""The keeper leaves nothing behind: whoever dies first, however stubborn the rest is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from app.ops.processes import KEEPER, Kept, engine_environment, kept
from tests.ops.helpers import ENV, alive, until, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="subreaper and /proc are Linux")

SCRIPT = """
import os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
same = subprocess.Popen([sys.executable, "-c", child])
away = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
(folder / "pids.part").write_text(f"{os.getpid()} {same.pid} {away.pid}")
(folder / "pids.part").rename(folder / "pids")
time.sleep(0 if "brief" in sys.argv else 600)
os._exit(7)
"""


def _start(folder: Path, *words: str, grace: str = "0.3") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", str(KEEPER), "--grace", grace, "--", sys.executable, "-c", SCRIPT, str(folder)]
    return subprocess.Popen([*command, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


def _pids(folder: Path) -> list[int]:
    wait_until((folder / "pids").exists, "the server starts")
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def _gone(pids: list[int]) -> None:
    wait_until(lambda: not any(map(alive, pids)), f"all of {pids} have ended")


def _finish(keeper: subprocess.Popen[bytes]) -> int:
    code = keeper.wait(timeout=15)
    for pipe in (keeper.stdin, keeper.stdout):
        assert pipe is not None
        pipe.close()
    return code


@pytest.mark.parametrize("deaf", [(), ("deaf",)], ids=["polite", "deaf"])
def test_end_of_the_pipe_ends_all_descendants(tmp_path: Path, deaf: tuple[str, ...]) -> None:
    keeper = _start(tmp_path, *deaf)
    pids = _pids(tmp_path)
    assert keeper.stdin is not None
    keeper.stdin.close()
    assert _finish(keeper) == (128 + signal.SIGKILL if deaf else 128 + signal.SIGTERM)
    _gone(pids)


def test_a_server_that_ends_takes_its_children_along(tmp_path: Path) -> None:
    keeper = _start(tmp_path, "brief")
    pids = _pids(tmp_path)
    assert _finish(keeper) == 7
    _gone(pids)


def test_sigterm_to_the_keeper_is_a_stop(tmp_path: Path) -> None:
    keeper = _start(tmp_path)
    pids = _pids(tmp_path)
    keeper.terminate()
    _finish(keeper)
    _gone(pids)


def test_a_killed_server_is_reported_with_its_signal(tmp_path: Path) -> None:
    keeper = _start(tmp_path)
    pids = _pids(tmp_path)
    os.kill(pids[0], signal.SIGKILL)
    assert _finish(keeper) == 128 + signal.SIGKILL
    _gone(pids)


def test_a_killed_keeper_takes_the_server_along(tmp_path: Path) -> None:
    keeper = _start(tmp_path)
    server, same, away = _pids(tmp_path)
    keeper.kill()
    _finish(keeper)
    _gone([server])
    for pid in (same, away):  # what nobody can do from outside: see processes.Kept for the app's part
        os.kill(pid, signal.SIGKILL)


APP = """
import anyio, os, sys
from app.ops.processes import kept
async def main():
    async with kept(sys.argv[1:], env=dict(os.environ), grace_s=0.3) as running:
        async for line in running.lines():
            print(line, flush=True)
anyio.run(main)
"""


def test_nothing_is_left_when_the_app_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), "deaf"]
    app = subprocess.Popen([sys.executable, "-c", APP, *command], env=ENV)
    pids = _pids(tmp_path)
    app.kill()
    app.wait()
    _gone(pids)


async def test_status_lines_and_pid_pass_through() -> None:
    script = "import sys; print('one'); sys.stdout.write('two\\rthree\\n\\nno end'); sys.stdout.flush(); sys.exit(5)"
    async with kept([sys.executable, "-c", script], env=engine_environment({})) as running:
        lines = [line async for line in running.lines()]
        assert await running.wait() == 5
    assert lines == ["one", "two", "three", "", "no end"]
    assert running.pid is not None
    assert not alive(running.pid)


async def test_a_command_that_cannot_start_says_so(tmp_path: Path) -> None:
    async with kept([str(tmp_path / "nothing")], env=engine_environment({})) as running:
        lines = [line async for line in running.lines()]
        assert await running.wait() == 127
    assert lines == [f"error: cannot start {tmp_path}/nothing: No such file or directory"]


async def test_a_line_without_end_does_not_fill_the_memory() -> None:
    script = "import sys; sys.stdout.write('x' * 1_000_000)"
    async with kept([sys.executable, "-c", script], env=engine_environment({})) as running:
        lines = [line async for line in running.lines()]
    assert sum(map(len, lines)) == 1_000_000
    assert all(len(line) < 200_000 for line in lines)


async def test_a_killed_keeper_is_tidied_up_by_the_app(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), "deaf"]
    async with (
        kept(command, env=engine_environment({}), grace_s=0.3) as running,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_read, running)
        await until((tmp_path / "pids").exists, "the server starts")
        server, same, away = _pids(tmp_path)
        keeper = Path(f"/proc/{server}/stat").read_bytes().rpartition(b")")[2].split()[1]
        os.kill(int(keeper), signal.SIGKILL)
        await running.wait()
        tasks.cancel_scope.cancel()
    _gone([server, same])
    os.kill(away, signal.SIGKILL)  # left the group, and its adopter is dead


async def _read(running: Kept) -> None:
    async for _ in running.lines():
        pass


def test_engines_get_no_keys_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "OPENAI_API_KEY",
        "SPECRACE_PRESENTER_TOKEN",
        "VLLM_API_KEY",
        "OPENAI_BASE_URL",
        "LD_PRELOAD",
        "DB_PASSWORD",
    ):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("HF_TOKEN", "hf")
    env = engine_environment({"OMP_NUM_THREADS": "1"})
    assert (
        not {"OPENAI_API_KEY", "SPECRACE_PRESENTER_TOKEN", "VLLM_API_KEY", "OPENAI_BASE_URL", "LD_PRELOAD"} & env.keys()
    )
    assert "DB_PASSWORD" not in env
    assert env["HF_TOKEN"] == "hf"
    assert env["OMP_NUM_THREADS"] == "1"
