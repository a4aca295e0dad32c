"""Holds the corridor: who may import whom (ARCHITECTURE.md draws it).

    upstream ──► race ──► log ──► scoreboard ──► frames ──► sse

A room of the corridor imports rooms to its left and the plain modules, nothing else of ours. Rooms beside it have
their neighbours listed. Whatever is not in the tables below has no room yet, and the test says so.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import text, under

CORRIDOR: dict[str, tuple[str, ...]] = {
    "upstream": (
        "race.upstream",
        "race.endpoint",
        "race.sse_lines",
        "race.wire",
        "race.records",
        "race.candidates",
        "race.failures",
        "race.counters",
        "race.growth",
        "race.spelling",
    ),
    "race": ("race.race", "race.racer", "race.speller", "race.lane", "race.warm_up"),
    "log": ("race.log",),
    "scoreboard": (
        "race.scoreboard",
        "race.divergence",
        "race.quality",
        "race.acceptance",
        "race.cause",
        "race.fairness",
        "race.provenance",
        "race.summary",
        "race.repeats",
        "race.series",
    ),
    "frames": (
        "web.frames",
        "web.board",
        "web.insight",
        "web.sametext",
        "web.spreads",
        "web.drafts",
        "web.draft_words",
        "web.ink",
        "web.conditions",
        "web.panes",
        "web.views",
        "web.words",
        "web.format",
        "web.render",
    ),
    "sse": ("web.sse",),
}
PLAIN = ("race.types", "race.clock", "race.events", "errors")

# Rooms beside the corridor, and the rooms each may know.
BESIDE: dict[str, tuple[str, ...]] = {
    "settings": ("race.endpoint",),
    "race.workloads": (),
    "race.store": ("scoreboard",),
    "race.replay": ("log", "scoreboard", "race.store"),
    "race.run": ("race", "log", "scoreboard"),
    "race.hub": ("upstream", "race", "log", "scoreboard", "race.run", "race.store", "race.replay"),
    "race.export": ("scoreboard", "race.replay"),
    "race.report": ("scoreboard", "race.export"),
    "race.sweep": ("upstream", "race", "log", "scoreboard", "race.run"),
    "race.repeater": ("scoreboard", "race.run", "race.hub"),
    "race.series_files": ("scoreboard", "race.report"),
    "race.advisor": ("scoreboard", "race.sweep"),
    "race.memory": (),
    "race.two_sample": (),
    "race.lossless": ("scoreboard", "race.two_sample"),
    "race.sampling": ("upstream", "race", "race.lossless"),
    "race.lossless_report": ("race.lossless", "race.sampling"),
}

# What one module of the corridor may know besides, with the reason.
BESIDES = {
    "web.sse": {"race.run"},  # a viewer follows a Run, and so keeps it alive
}

# Never below race, whose code knows neither HTTP servers nor HTML.
SERVERS = {"fastapi", "starlette", "sse_starlette", "jinja2", "uvicorn", "markupsafe"}

# Distributions whose module has another name.
MODULE_OF = {"pydantic-settings": "pydantic_settings", "python-multipart": "multipart"}
# Declared without an import of ours, each with its reason.
UNIMPORTED = {
    "httptools": "uvicorn's parser",
    "uvloop": "uvicorn's loop",
    "python-multipart": "FastAPI reads forms with it",
    "itsdangerous": "Starlette signs cookies with it",
}


def module_of(path: Path) -> str:
    parts = path.with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in under("app", ".py")}
ROOM_OF = {module: room for room, modules in CORRIDOR.items() for module in modules}


def imported(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, the ones for type checkers too: knowing a type is knowing."""
    for node in ast.walk(ast.parse(text(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner.removeprefix("app.") in MODULES else base


def ours(path: Path) -> set[str]:
    names = {name.removeprefix("app").removeprefix(".") for name in imported(path) if name.split(".")[0] == "app"}
    return names - {""}


def theirs(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)} - {"app", "__future__"}


def allowed(module: str) -> set[str]:
    """The modules of ours that a module of the corridor, or beside it, may import."""
    rooms: list[str] = []
    if module in ROOM_OF:
        order = list(CORRIDOR)
        rooms = order[: order.index(ROOM_OF[module]) + 1]
    elif module in BESIDE:
        rooms = [*BESIDE[module], module]
    names = {name for room in rooms for name in CORRIDOR.get(room, (room,))}
    return names | set(PLAIN) | BESIDES.get(module, set())


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("race.") and name not in PLAIN])
def test_every_module_of_race_has_a_room(module: str) -> None:
    assert module in ROOM_OF or module in BESIDE, "give it a room in this file and in ARCHITECTURE.md"


@pytest.mark.parametrize("module", [name for name in MODULES if name in ROOM_OF or name in BESIDE])
def test_the_corridor_is_walked_one_way(module: str) -> None:
    assert ours(MODULES[module]) - allowed(module) == set()


@pytest.mark.parametrize("module", [name for name in PLAIN if name in MODULES])
def test_plain_modules_know_only_plain_modules(module: str) -> None:
    assert ours(MODULES[module]) - set(PLAIN) == set()


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("race.")])
def test_race_knows_no_http_server_and_no_html(module: str) -> None:
    assert theirs(MODULES[module]) & SERVERS == set()
    assert {name for name in ours(MODULES[module]) if name.split(".")[0] not in {"race", "errors"}} == set()


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("ops.")])
def test_ops_knows_nothing_of_the_web(module: str) -> None:
    assert {name for name in ours(MODULES[module]) if name.split(".")[0] in {"web", "main", "cli"}} == set()
    assert theirs(MODULES[module]) & SERVERS == set()


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("web.")])
def test_web_is_not_started_from_inside(module: str) -> None:
    assert {name for name in ours(MODULES[module]) if name.split(".")[0] in {"main", "cli"}} == set()


def test_every_import_is_declared_and_every_declaration_used() -> None:
    declared = tomllib.loads(text(Path("pyproject.toml")))["project"]["dependencies"]
    names = {re.split(r"[<>=!~;\[ ]", line)[0] for line in declared}
    modules = {MODULE_OF.get(name, name.replace("-", "_")): name for name in names}
    used = {name for path in MODULES.values() for name in theirs(path)} - set(sys.stdlib_module_names)
    assert used - modules.keys() == set(), "imported and not declared"
    assert {modules[module] for module in modules.keys() - used} - UNIMPORTED.keys() == set(), "declared and not used"
