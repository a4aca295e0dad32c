"""The ready prompts, from one TOML file that a presenter edits without touching code (deploy/workloads.toml)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

from app.errors import SettingsError
from app.race.types import Sampling


class Tab(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tab of the page. ``note`` is one sentence on what the room will see in it."""

    name: str
    title: str
    note: str


class Workload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ready prompt. ``prompt`` is sent as it stands; ``seed`` and ``top_p`` are always sent too."""

    name: str
    tab: str
    title: str
    prompt: str
    system: str | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int = 256
    ignore_eos: bool = False

    @property
    def sampling(self) -> Sampling:
        """What both servers are asked for."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
        )


class Workloads(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All tabs and prompts, in the order of the file."""

    tab: list[Tab]
    workload: list[Workload]

    def get(self, name: str) -> Workload | None:
        """The workload of that name."""
        return next((w for w in self.workload if w.name == name), None)

    def in_tab(self, tab: str) -> list[Workload]:
        """The workloads of a tab, in the order of the file."""
        return [w for w in self.workload if w.tab == tab]

    @property
    def first(self) -> Workload:
        """What the page opens with."""
        return self.in_tab(self.tab[0].name)[0]


def load_workloads(path: Path) -> Workloads:
    """Read and check the file.

    Raises:
        SettingsError: it cannot be read, is no TOML, or something in it is wrong; names the place.
    """
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Workloads)
    except OSError as error:
        raise SettingsError(str(path), f"cannot be read ({error.strerror})", "Give a readable TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise SettingsError(str(path), str(error), "Correct this place; deploy/workloads.toml is an example") from None
    _check(found, path)
    return found


def _check(found: Workloads, path: Path) -> None:
    names: set[str] = set()
    tabs = [tab.name for tab in found.tab]
    if len(tabs) != len(set(tabs)):
        raise SettingsError(str(path), "the name of a tab is used twice", "Give every tab a name of its own")
    if not tabs:
        raise SettingsError(str(path), "there is no [[tab]]", "Add at least one tab with a workload in it")
    for w in found.workload:
        field = f"{path}: workload {w.name!r}"
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", w.name):
            raise SettingsError(field, "the name is not usable in a URL", "Use lower-case letters, digits and dashes")
        if w.name in names:
            raise SettingsError(field, "the name is used twice", "Give every workload a name of its own")
        names.add(w.name)
        if w.tab not in tabs:
            raise SettingsError(field, f"there is no tab {w.tab!r}", f"Use one of {', '.join(sorted(tabs))}")
        if not w.prompt.strip():
            raise SettingsError(field, "the prompt is empty", "Write a prompt")
        if not (0 <= w.temperature <= 2 and 0 < w.top_p <= 1 and w.max_tokens >= 1 and 0 <= w.seed < 2**63):
            raise SettingsError(
                field,
                "the sampling is out of range",
                "temperature 0..2, top_p 0..1, max_tokens 1 or more, seed 0 or more",
            )
    for tab in found.tab:
        if not any(w.tab == tab.name for w in found.workload):
            raise SettingsError(f"{path}: tab {tab.name!r}", "has no workload", "Add one, or remove the tab")
