"""The files that make up the project, for the checks in this folder."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def files() -> tuple[Path, ...]:
    """Every file that git tracks or would track, relative to the root; all of them where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        found = [Path(name) for name in listed.stdout.split("\0") if name]
    else:
        made_here = {".venv", ".tools", ".git", "__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis"}
        found = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
        found = [path for path in found if not made_here & set(path.parts)]
    return tuple(sorted(path for path in found if (ROOT / path).is_file()))


def text(path: Path) -> str:
    """The file as text; empty when it is none."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def under(folder: str, *suffixes: str) -> tuple[Path, ...]:
    """The files below a top-level folder that end in one of the suffixes."""
    return tuple(path for path in files() if path.parts[0] == folder and path.suffix in suffixes)
