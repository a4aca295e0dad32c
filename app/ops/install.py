"""The engine environment and its weights: made once, in the user's cache folder, out of a profile.

    CACHE/engines/cpu-HASH/      a virtual environment; complete only with the file ``complete.json`` in it
    CACHE/weights/cpu-HASH/      prepared in a folder beside it and renamed when whole
    CACHE/locks/                 one installation at a time; the lock lasts as long as the installer runs
    CACHE/logs/                  what was printed

HASH covers everything that decides the content, so another version of a profile gets a folder of its own, and an
interrupted installation (power cut, SIGKILL) is begun anew and never taken for a whole one.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio

from app.errors import EngineError
from app.ops.locks import locked
from app.ops.processes import engine_environment
from app.ops.profiles import ENGINE_FILES, Profile
from app.ops.runner import Audience, Runner
from app.ops.uv import find_uv

COMPLETE = "complete.json"
PROBE_S = 8.0


def environment_dir(profile: Profile, cache_dir: Path) -> Path | None:
    """Where the environment is or will be; None when the profile names a command of its own."""
    engine = profile.engine
    if engine.requirements is None:
        return None
    names = [engine.requirements, engine.constraints, engine.overrides, *engine.packages]
    content = _hash([ENGINE_FILES / name for name in names if name])
    return cache_dir / "engines" / f"{Path(engine.requirements).stem.removeprefix('requirements-')}-{content}"


def weights_dir(profile: Profile, cache_dir: Path) -> Path | None:
    """Where prepared weights are or will be; None when the server fetches its own."""
    if profile.weights.script is None or profile.engine.requirements is None:
        return None
    content = _hash([ENGINE_FILES / profile.weights.script, ENGINE_FILES / profile.engine.requirements])
    return cache_dir / "weights" / f"{profile.server.served_name}-{content}"


def is_installed(profile: Profile, cache_dir: Path) -> bool:
    """Whether environment and weights are whole."""
    environment, weights = environment_dir(profile, cache_dir), weights_dir(profile, cache_dir)
    return (environment is None or (environment / COMPLETE).exists()) and (weights is None or weights.exists())


async def install(profile: Profile, cache_dir: Path, audience: Audience) -> None:
    """Make the environment unless it is whole. Raises EngineError with the cause and the remedy."""
    target = environment_dir(profile, cache_dir)
    if target is None or (target / COMPLETE).exists():
        return
    waiting = partial(audience.step, "another Specrace is installing the engine; waiting for it")
    async with locked(cache_dir / "locks" / f"{target.name}.lock", waiting=waiting) as lock:
        if (target / COMPLETE).exists():
            return
        if target.exists():
            audience.step("an earlier installation was interrupted; starting over")
            await anyio.to_thread.run_sync(shutil.rmtree, target)
        target.parent.mkdir(parents=True, exist_ok=True)
        log = cache_dir / "logs" / "install.log"
        runner = Runner("engine environment", log=log, hide=hidden(cache_dir), lock=lock, audience=audience)
        uv = await find_uv(cache_dir, runner)
        audience.step("creating the engine's environment")
        await runner.run(venv_command(uv, target), engine_environment(uv_variables()))
        backend = await _torch_backend(uv, profile, target, runner)
        audience.step("installing vLLM: a few gigabytes, once")
        if not await _installed_with(backend, uv, profile, target, runner):
            backend = []
            await runner.run(install_command(uv, profile, target), engine_environment(uv_variables()))
        _write_complete(target, profile, backend)


async def prepare_weights(profile: Profile, cache_dir: Path, audience: Audience) -> None:
    """Make the weights folder unless it is there. Raises EngineError."""
    target, environment = weights_dir(profile, cache_dir), environment_dir(profile, cache_dir)
    if target is None or environment is None or target.exists():
        return
    waiting = partial(audience.step, "another Specrace is preparing the weights; waiting for it")
    async with locked(cache_dir / "locks" / f"{target.name}.lock", waiting=waiting) as lock:
        if target.exists():
            return
        if profile.weights.notice:
            audience.step(profile.weights.notice)
        staging = target.with_name(f".{target.name}.part")
        if staging.exists():
            await anyio.to_thread.run_sync(shutil.rmtree, staging)
        staging.parent.mkdir(parents=True, exist_ok=True)
        command = weights_command(profile, environment, staging)
        env = engine_environment({"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
        log = cache_dir / "logs" / "weights.log"
        await Runner("weights", log=log, hide=hidden(cache_dir), lock=lock, audience=audience).run(command, env)
        staging.rename(target)


def venv_command(uv: str, target: Path) -> list[str]:
    """uv's exact command for an empty environment at ``target``, with the Python that runs this."""
    return [uv, "venv", "--no-project", "--python", base_python(), str(target)]


def install_command(uv: str, profile: Profile, target: Path, backend: Sequence[str] = ()) -> list[str]:
    """uv's exact command for an environment at ``target``."""
    engine = profile.engine
    command = [uv, "pip", "install", "--python", str(target / "bin" / "python"), "--compile-bytecode", *backend]
    for option, name in (("--constraint", engine.constraints), ("--override", engine.overrides)):
        command += [option, str(ENGINE_FILES / name)] if name else []
    command += ["-r", str(ENGINE_FILES / engine.requirements)] if engine.requirements else []
    return [*command, *(str(ENGINE_FILES / package) for package in engine.packages)]


def weights_command(profile: Profile, environment: Path, target: Path) -> list[str]:
    """The exact command that writes the weights to ``target``."""
    script = ENGINE_FILES / (profile.weights.script or "")
    return [str(environment / "bin" / "python"), str(script), str(target)]


def base_python() -> str:
    """The interpreter under this environment: the engine's environment must outlive ours."""
    return getattr(sys, "_base_executable", None) or sys.executable


def hidden(cache_dir: Path) -> dict[str, str]:
    """This machine's folders and what is shown instead: paths are nobody's business on a projector."""
    shown = {str(ENGINE_FILES.parents[1]): "specrace", str(cache_dir): "cache", str(Path.home()): "~"}
    return {folder: name for folder, name in shown.items() if len(folder) > 1}


async def _installed_with(backend: list[str], uv: str, profile: Profile, target: Path, runner: Runner) -> bool:
    """Whether PyTorch's own index gave all that is needed; a mirror may have the page and not the files."""
    if not backend:
        return False
    try:
        await runner.run(install_command(uv, profile, target, backend), engine_environment(uv_variables()))
    except EngineError as error:
        runner.audience.step(f"PyTorch's own index did not do ({error.reason}); taking the default build")
        return False
    return True


async def _torch_backend(uv: str, profile: Profile, target: Path, runner: Runner) -> list[str]:
    """The option for PyTorch's own index when it can be reached, else nothing. Asks for one page, briefly: without
    a way there a resolver would try for minutes."""
    backend = profile.engine.torch_backend
    if backend is None or profile.engine.overrides is None:
        return []
    torch = next(
        line
        for line in (ENGINE_FILES / profile.engine.overrides).read_text(encoding="utf-8").splitlines()
        if line.startswith("torch==")
    )
    python = str(target / "bin" / "python")
    options = ["--torch-backend", backend]
    probe = [uv, "pip", "install", "--dry-run", "--no-deps", "--python", python, *options, torch]
    impatient = {"UV_HTTP_TIMEOUT": "3", "UV_HTTP_RETRIES": "0"}
    try:
        with anyio.fail_after(PROBE_S):
            await runner.run(probe, engine_environment(uv_variables() | impatient), quiet=True)
    except (EngineError, TimeoutError):
        return []
    return options


def uv_variables() -> dict[str, str]:
    """What uv is told through variables. It reads no pip settings, so a folder of wheels given to pip is passed on:
    a +cpu build of PyTorch there saves 2 GB of disk and 3 s of every start."""
    given = os.environ.get("PIP_FIND_LINKS", "").split()
    usable = [place for place in given if "://" in place or Path(place).is_dir()]
    wheels = {"UV_FIND_LINKS": ",".join(usable)} if usable and "UV_FIND_LINKS" not in os.environ else {}
    return {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", **wheels}


def _write_complete(target: Path, profile: Profile, backend: Sequence[str]) -> None:
    """The last step, atomic and on the disk: from here on the environment counts as whole."""
    about = {"profile": profile.name, "python": platform.python_version(), "torch_backend": list(backend)}
    part = target / f"{COMPLETE}.part"
    with part.open("w", encoding="utf-8") as file:
        json.dump(about, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(target / COMPLETE)


def _hash(files: Sequence[Path]) -> str:
    """12 hex digits over the files (folders with all that is in them), Python's version and the processor."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {platform.machine()}".encode())
    for path in files:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
