"""What ``specrace bench`` is asked for: options and files → the plan of a sweep."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct, structs

from app.errors import SettingsError
from app.race.sweep import Ask, Item, Plan
from app.race.types import Sampling, Schedule
from app.race.workloads import Workloads, load_workloads
from app.settings import Settings

MOST_AT_ONCE = 1024
MOST_DIGITS = 9
MOST_SHOWN = 40


class Asked(Struct, frozen=True, kw_only=True):
    """What the command line asked for. ``json`` and ``csv`` are files, "-" is standard output."""

    workloads: tuple[str, ...] = ()
    prompt: str | None = None
    prompts: Path | None = None
    repeats: int = 5
    schedule: Schedule = "in_turn"
    concurrency: str = "1"
    max_tokens: int | None = None
    temperature: float | None = None
    ignore_eos: bool | None = None
    fresh_cache: bool = True
    warm_up: bool = True
    json: str | None = None
    csv: str | None = None


def plan_of(settings: Settings, asked: Asked) -> Plan:
    """The plan that was asked for; without a workload or a prompt the first tab and "creative".

    Raises:
        SettingsError: a name, a number or a file is wrong.
    """
    items: list[Item] = []
    if asked.workloads or not (asked.prompt or asked.prompts):
        known = load_workloads(settings.workloads)
        items += _ready(known, asked.workloads or _usual(known))
    if asked.prompt is not None:
        items.append(_own("prompt", [_usable(asked.prompt)]))
    if asked.prompts is not None:
        items.append(_own(printable(asked.prompts.name), read_prompts(asked.prompts)))
    return Plan(
        items=tuple(_as_asked(item, asked) for item in items),
        loads=_loads(asked.concurrency),
        repeats=asked.repeats,
        schedule=asked.schedule,
        fresh_cache=asked.fresh_cache,
    )


def _usual(known: Workloads) -> tuple[str, ...]:
    tabs = [tab.name for tab in known.tab]
    return tuple(dict.fromkeys([tabs[0], *(tab for tab in tabs if tab == "creative")]))


def _ready(known: Workloads, names: Iterable[str]) -> list[Item]:
    """Ready prompts by name, or all of a tab; each once."""
    found: dict[str, Item] = {}
    for name in names:
        one = known.get(name)
        for workload in known.in_tab(name) if one is None else [one]:
            ask = Ask(prompt=workload.prompt, system=workload.system, sampling=workload.sampling)
            found[workload.name] = Item(name=workload.name, asks=(ask,))
        if one is None and not known.in_tab(name):
            names_known = ", ".join([*(tab.name for tab in known.tab), *(w.name for w in known.workload)])
            raise SettingsError("--workload", f"there is no workload or tab {name!r}", f"Use one of: {names_known}")
    return list(found.values())


def _own(name: str, prompts: list[str]) -> Item:
    sampling = Sampling(temperature=0.0, top_p=1.0, seed=0, max_tokens=200, ignore_eos=False)
    return Item(name=name, asks=tuple(Ask(prompt=prompt, system=None, sampling=sampling) for prompt in prompts))


def _as_asked(item: Item, asked: Asked) -> Item:
    """The item with what the command line says of the sampling."""
    given = {"max_tokens": asked.max_tokens, "temperature": asked.temperature, "ignore_eos": asked.ignore_eos}
    changes = {name: value for name, value in given.items() if value is not None}
    asks = tuple(structs.replace(ask, sampling=structs.replace(ask.sampling, **changes)) for ask in item.asks)
    return structs.replace(item, asks=asks)


def _loads(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(_is_load(part) for part in parts):
        shown = f"{text[:MOST_SHOWN]!r}{'...' if len(text) > MOST_SHOWN else ''}"
        reason = f"{shown} is no list of numbers from 1 to {MOST_AT_ONCE}"
        raise SettingsError("--concurrency", reason, "Give for example --concurrency 1,4,16")
    return tuple(dict.fromkeys(int(part) for part in parts))


def _is_load(part: str) -> bool:
    """The length comes first: Python refuses to read thousands of digits."""
    return part.isascii() and part.isdigit() and len(part) <= MOST_DIGITS and 1 <= int(part) <= MOST_AT_ONCE


def printable(text: str) -> str:
    """A name as it can be written to a terminal or a file: bytes that are no UTF-8 become "?"."""
    return text.encode(errors="replace").decode()


def _is_text(prompt: str) -> bool:
    """Whether it can be sent: a lone surrogate (a byte of the command line that is no UTF-8) is no character."""
    try:
        prompt.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file: of a .jsonl file the "prompt" of each line, of any other each line. Empty lines are none.

    Raises:
        SettingsError: it cannot be read, or there is no prompt in it.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise SettingsError(
            "--prompts", f"{printable(path.name)} cannot be read ({reason})", "Give a readable file"
        ) from None
    filled = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not filled:
        raise SettingsError("--prompts", f"there is no prompt in {printable(path.name)}", "Give one prompt a line")
    if path.suffix != ".jsonl":
        return [line.removesuffix("\r") for _, line in filled]
    return [_prompt_of(path, number, line) for number, line in filled]


def _prompt_of(path: Path, number: int, line: str) -> str:
    name = printable(path.name)
    try:
        found: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        found = None
    prompt = cast("dict[str, Any]", found).get("prompt") if isinstance(found, dict) else None
    if not isinstance(prompt, str) or not prompt.strip():
        reason = f"line {number} of {name} is no JSON object with a prompt"
        raise SettingsError("--prompts", reason, 'Give one {"prompt": "..."} a line')
    if not _is_text(prompt):
        reason = f"line {number} of {name} has half a character (a lone surrogate) in its prompt"
        raise SettingsError("--prompts", reason, "Give both halves of it, or the character itself")
    return prompt


def _usable(prompt: str) -> str:
    if not prompt.strip():
        raise SettingsError("--prompt", "the prompt is empty", "Write a prompt")
    if not _is_text(prompt):
        raise SettingsError("--prompt", "the prompt is no UTF-8", "Give it as UTF-8")
    return prompt
