"""What may lie in the tree, and what may not stand in it."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

from tests.house.tree import ROOT, files, text

TOP = {
    "pyproject.toml", "app", "templates", "static", "deploy", "tests", "README.md",
    "Makefile", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", "requirements.lock",
}  # fmt: skip

MACHINE = re.compile(r"(^|[^a-zA-Z])/(tmp|root|work|home)/[a-zA-Z]|python[h]osted|registry\.npm[j]s|pypi\.[o]rg")

# Where such a path is really meant, with the reason: file -> the paths it may name.
MEANT: dict[str, tuple[str, ...]] = {
    "tests/ops/test_logs.py": ("/home/" + "ada",),  # a person made up, whose home the boot log must not show
}


def test_the_top_level_is_the_agreed_one() -> None:
    strangers = {path.parts[0] for path in files()} - TOP
    assert {name for name in strangers if not name.startswith(".")} == set()


def test_no_second_lock() -> None:
    assert [path for path in files() if path.name in {"uv.lock", "poetry.lock", "package-lock.json"}] == []


def test_no_path_of_a_machine_and_no_registry() -> None:
    found = [(str(path), line) for path in files() for line in text(path).splitlines() if MACHINE.search(line)]
    assert [(path, line) for path, line in found if not any(meant in line for meant in MEANT.get(path, ()))] == []


def test_the_lock_names_no_index_and_hashes_everything() -> None:
    lock = text(Path("requirements.lock"))
    assert not re.search(r"https?:|file:|--(extra-)?index-url|--find-links", lock)
    entries = re.split(r"\n(?=[a-z0-9])", lock.split("\n", 2)[2])
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_vendored_files_are_the_ones_described() -> None:
    folder = ROOT / "static" / "vendor"
    rows = re.findall(
        r"^\| (\S+\.\w+) \| .+ \| .+ \| ([0-9a-f]{64}) \|$", text(Path("static/vendor/VENDORED.md")), re.MULTILINE
    )
    described = dict(rows)
    present = {path.name: path for path in folder.iterdir() if path.name != "VENDORED.md"}
    assert present.keys() == described.keys()
    sums = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in present.items()}
    assert sums == described


def test_vendored_files_ask_for_no_source_map() -> None:
    maps = [path for path in files() if path.parts[0] == "static" and "sourceMappingURL" in text(path)]
    assert maps == []


def test_recordings_stay_small() -> None:
    recordings = [path for path in files() if path.parts[0] == "deploy" and "recording" in str(path)]
    assert sum((ROOT / path).stat().st_size for path in recordings) <= 300_000


def test_what_is_pinned_twice_agrees() -> None:
    project = tomllib.loads(text(Path("pyproject.toml")))
    assert project["project"]["version"] == re.findall(r'__version__ = "(.+)"', text(Path("app/__init__.py")))[0]
    uv = re.findall(r"^UV_VERSION := (\S+)$", text(Path("Makefile")), re.MULTILINE)[0]
    assert f'UV = "uv=={uv}"' in text(Path("app/ops/uv.py"))
    assert project["build-system"]["requires"][0].startswith(f"uv_build>={uv},")
