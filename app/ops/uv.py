"""Finding uv, or getting it with pip: the only thing that a fresh machine needs is Python with pip."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from pathlib import Path

from app.errors import EngineError
from app.ops.processes import engine_environment
from app.ops.profiles import DEPLOY
from app.ops.runner import Runner

UV = "uv==0.13.9"


def found_uv(cache_dir: Path) -> str | None:
    """Path of a uv: the project's own tools, PATH, this environment, an earlier download."""
    for folder in (DEPLOY.parent / ".tools" / "bin", private_folder(cache_dir) / "bin"):
        if (folder / "uv").is_file():
            return str(folder / "uv")
    if on_path := shutil.which("uv"):
        return on_path
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("uv")
        beside = Path(sys.executable).with_name("uv")
        if spec is not None and beside.is_file():
            return str(beside)
    return None


def private_folder(cache_dir: Path) -> Path:
    """Where a downloaded uv lies: touches no other Python."""
    return cache_dir / "tools" / UV.replace("==", "-")


async def find_uv(cache_dir: Path, runner: Runner) -> str:
    """Path of uv, downloaded with pip when there is none. Raises EngineError."""
    if uv := found_uv(cache_dir):
        return uv
    target = private_folder(cache_dir)
    part = target.with_name(f".{target.name}.part")
    reason = "no Python here has pip"
    runner.audience.step("fetching uv with pip")
    for python in _pythons():
        shutil.rmtree(part, ignore_errors=True)
        command = [python, "-m", "pip", "install", "--quiet", "--no-input", "--target", str(part), UV]
        try:
            await runner.run(command, engine_environment({}))
        except EngineError as error:
            reason = error.reason
            continue
        part.rename(target)
        return str(target / "bin" / "uv")
    raise EngineError("uv", f"it is not installed and pip could not install it: {reason}", "Install uv or pip")


def _pythons() -> list[str]:
    """Interpreters that may have pip; a virtual environment made by uv has none, the one under it does."""
    base = getattr(sys, "_base_executable", None)
    candidates = [sys.executable, base, shutil.which("python3")]
    return list(dict.fromkeys(path for path in candidates if path))
