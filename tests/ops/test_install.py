"""Installing: once, whole or not at all, one at a time. With a uv and a Python that only pretend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from app.errors import EngineError
from app.ops.install import environment_dir, install, is_installed, prepare_weights, uv_variables, weights_dir
from app.ops.profiles import load_profile
from app.ops.runner import Audience
from app.ops.uv import UV, find_uv, found_uv, private_folder
from tests.ops.helpers import ENV, wait_until

FAKE_UV = """#!{python}
import os, pathlib, sys, time
words = sys.argv[1:]
log = pathlib.Path(os.environ["FAKE_FOLDER"], "uv-calls")
with log.open("a") as file:
    file.write(" ".join(words) + "\\n")
if words[0] == "venv":
    env = pathlib.Path(words[-1])
    (env / "bin").mkdir(parents=True)
    (env / "bin" / "python").write_text({weights!r})
    (env / "bin" / "python").chmod(0o755)
elif "--torch-backend" in words and os.environ.get("FAKE_INDEX") == "empty" and "--dry-run" not in words:
    print("error: no such file on this mirror")
    sys.exit(1)
elif "--torch-backend" in words and not os.environ.get("FAKE_INDEX"):
    print("error: Failed to fetch: `pytorch`")
    sys.exit(2)
elif "--dry-run" not in words:
    print("Resolved 3 packages in 1ms", flush=True)
    time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
    print("+ torch==2.13.0")
    if os.environ.get("FAKE_FAIL"):
        print("error: No space left on device (os error 28)")
        sys.exit(2)
"""
FAKE_PYTHON = """#!/bin/sh
echo "* unpacking"
mkdir -p "$2"
if [ -n "$FAKE_FAIL" ]; then echo "RuntimeError: bad checksum"; exit 1; fi
echo weights > "$2/model.safetensors"
"""
CPU = load_profile("cpu")


class Heard:
    def __init__(self) -> None:
        self.steps: list[str] = []
        self.lines: list[str] = []

    @property
    def audience(self) -> Audience:
        return Audience(step=self.steps.append, line=self.lines.append)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tool = tmp_path / "cache" / "tools" / UV.replace("==", "-") / "bin" / "uv"
    tool.parent.mkdir(parents=True)
    tool.write_text(FAKE_UV.format(python=sys.executable, weights=FAKE_PYTHON), encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("FAKE_FOLDER", str(tmp_path))
    monkeypatch.setattr("app.ops.uv.DEPLOY", tmp_path / "elsewhere" / "deploy")
    return tmp_path / "cache"


def _calls(cache: Path) -> list[str]:
    path = cache.parent / "uv-calls"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


async def test_installed_once_with_the_override_when_the_cpu_index_is_out_of_reach(cache: Path) -> None:
    heard = Heard()
    assert not is_installed(CPU, cache)
    await install(CPU, cache, heard.audience)
    await prepare_weights(CPU, cache, heard.audience)
    assert is_installed(CPU, cache)
    venv, probe, real = _calls(cache)
    assert venv.startswith("venv")
    assert "--dry-run" in probe
    assert "torch==2.13.0" in probe
    assert "--torch-backend" not in real
    for part in ("overrides.txt", "constraints-cpu.txt", "requirements-cpu.txt", "vllm-shim", "--compile-bytecode"):
        assert part in real
    assert heard.lines == ["Resolved 3 packages in 1ms"]
    assert any("Gemma Terms of Use" in step for step in heard.steps)
    assert heard.steps[-1] == "unpacking"
    await install(CPU, cache, heard.audience)
    await prepare_weights(CPU, cache, heard.audience)
    assert len(_calls(cache)) == 3


async def test_the_cpu_index_is_used_where_it_can_be_reached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_INDEX", "there")
    await install(CPU, cache, Heard().audience)
    assert "--torch-backend cpu" in _calls(cache)[-1]


async def test_a_cpu_index_without_the_files_costs_only_the_try(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_INDEX", "empty")
    heard = Heard()
    await install(CPU, cache, heard.audience)
    with_it, without = _calls(cache)[-2:]
    assert "--torch-backend cpu" in with_it
    assert "--torch-backend" not in without
    assert "no such file on this mirror" in heard.steps[-1]


async def test_a_failure_names_the_cause_and_leaves_nothing_whole(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAIL", "1")
    with pytest.raises(EngineError) as caught:
        await install(CPU, cache, Heard().audience)
    assert "No space left on device" in caught.value.reason
    assert "Free disk space" in caught.value.reason
    assert not is_installed(CPU, cache)
    monkeypatch.delenv("FAKE_FAIL")
    heard = Heard()
    await install(CPU, cache, heard.audience)
    assert "an earlier installation was interrupted; starting over" in heard.steps


async def test_weights_that_fail_leave_no_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await install(CPU, cache, Heard().audience)
    monkeypatch.setenv("FAKE_FAIL", "1")
    with pytest.raises(EngineError, match="bad checksum"):
        await prepare_weights(CPU, cache, Heard().audience)
    target = weights_dir(CPU, cache)
    assert target is not None
    assert not target.exists()
    monkeypatch.delenv("FAKE_FAIL")
    await prepare_weights(CPU, cache, Heard().audience)
    assert (target / "model.safetensors").exists()


async def test_two_at_once_install_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SECONDS", "0.3")
    heard = [Heard(), Heard()]
    async with anyio.create_task_group() as tasks:
        for listener in heard:
            tasks.start_soon(install, CPU, cache, listener.audience)
    assert sum(call.startswith("venv") for call in _calls(cache)) == 1
    assert sum("another Specrace is installing the engine; waiting for it" in one.steps for one in heard) == 1


INSTALLER = """
import sys, anyio
from pathlib import Path
import app.ops.uv
app.ops.uv.DEPLOY = Path("/nowhere/deploy")
from app.ops.install import install
from app.ops.profiles import load_profile
from app.ops.runner import Audience
anyio.run(install, load_profile("cpu"), Path(sys.argv[1]), Audience(step=print, line=print))
"""


async def test_a_killed_installer_lets_the_next_one_start_over(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", INSTALLER, str(cache)]
    environment = {**ENV, "FAKE_FOLDER": str(cache.parent), "FAKE_SECONDS": "60"}
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    wait_until(lambda: len(_calls(cache)) == 3, "the first is in the middle")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    heard = Heard()
    with anyio.fail_after(15):
        await install(CPU, cache, heard.audience)
    assert is_installed(CPU, cache) is False  # the weights are still to come
    environment_folder = environment_dir(CPU, cache)
    assert environment_folder is not None
    assert (environment_folder / "complete.json").exists()
    assert "an earlier installation was interrupted; starting over" in heard.steps


async def test_a_cancelled_installation_ends_uv(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SECONDS", "60")
    with anyio.move_on_after(1.5) as limit:
        await install(CPU, cache, Heard().audience)
    assert limit.cancelled_caught
    assert not is_installed(CPU, cache)


def test_the_folder_follows_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = environment_dir(CPU, tmp_path)
    assert before is not None
    assert before.name.startswith("cpu-")
    monkeypatch.setattr("app.ops.install.sys.version_info", (3, 99))
    assert environment_dir(CPU, tmp_path) != before
    assert environment_dir(load_profile("gpu-draft"), tmp_path) == environment_dir(load_profile("gpu-qwen3"), tmp_path)
    assert weights_dir(load_profile("gpu-draft"), tmp_path) is None


def test_wheels_given_to_pip_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path} /nowhere/at/all")
    assert uv_variables()["UV_FIND_LINKS"] == str(tmp_path)
    monkeypatch.setenv("UV_FIND_LINKS", "/own")
    assert "UV_FIND_LINKS" not in uv_variables()


async def test_without_any_uv_pip_fetches_one_into_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ops.uv.DEPLOY", tmp_path / "elsewhere" / "deploy")
    monkeypatch.setattr("app.ops.uv.shutil.which", lambda _: None)
    monkeypatch.setattr("app.ops.uv.importlib.util.find_spec", lambda _: None)
    assert found_uv(tmp_path) is None
    commands: list[list[str]] = []

    class Pip:
        audience = Heard().audience

        async def run(self, command: list[str], env: dict[str, str]) -> None:
            commands.append(command)
            if len(commands) == 1:
                raise EngineError("x", "No module named pip", "y")
            (Path(command[-2]) / "bin").mkdir(parents=True)
            (Path(command[-2]) / "bin" / "uv").touch()

    uv = await find_uv(tmp_path, Pip())  # type: ignore[arg-type]
    assert uv == str(private_folder(tmp_path) / "bin" / "uv")
    assert commands[0][-1] == UV
    assert found_uv(tmp_path) == uv
