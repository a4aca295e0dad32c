"""What a check found, and how it reads on a terminal. Pure; addresses and keys never get in here.

Not ready means at least one problem: something that would fail, or mislead, in front of people. A warning spoils a
figure, a note is to be known; neither keeps anybody from the stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from app.race.types import LANES, LaneName

Level = Literal["ok", "note", "warning", "problem"]
SIGNS: dict[Level, str] = {"ok": "ok", "note": "note", "warning": "warning", "problem": "PROBLEM"}


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at. ``lane`` None is about the pair; ``detail`` holds the measured value.

    ``remedy`` is a sentence; ``code`` the exact flag, variable or command that it speaks of, to be copied.
    """

    key: str
    lane: LaneName | None = None
    level: Level
    title: str
    detail: str
    remedy: str | None = None
    code: str | None = None


class Report(Struct, frozen=True, kw_only=True):
    """A whole check. ``at`` is ISO 8601, UTC; ``why`` says in a line what the answer rests on."""

    ready: bool
    why: str
    at: str
    took_s: float
    findings: tuple[Finding, ...]


def report(findings: Sequence[Finding], *, at: str, took_s: float) -> Report:
    """The findings with their verdict."""
    problems = [finding for finding in findings if finding.level == "problem"]
    warnings = [finding for finding in findings if finding.level == "warning"]
    if problems:
        why = f"{_count(len(problems), 'problem')}: {'; '.join(map(_told, problems))}"
    elif warnings:
        why = f"no problem, {_count(len(warnings), 'warning')}: {_titles(warnings)}"
    else:
        why = "no problem and no warning"
    return Report(ready=not problems, why=why, at=at, took_s=round(took_s, 1), findings=tuple(findings))


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _told(finding: Finding) -> str:
    where = f"{finding.lane}, " if finding.lane else ""
    return f"{where}{finding.title.lower()}: {finding.detail.rstrip('.')}"


def _titles(findings: Sequence[Finding]) -> str:
    return "; ".join(f"{finding.title.lower()}{f' ({finding.lane})' if finding.lane else ''}" for finding in findings)


def by_lane(findings: Sequence[Finding]) -> Iterator[tuple[LaneName | None, list[Finding]]]:
    """The findings of each server and of the pair, in that order; groups without any are left out."""
    for lane in (*LANES, None):
        group = [finding for finding in findings if finding.lane == lane]
        if group:
            yield lane, group


def as_text(found: Report) -> str:
    """The report for a terminal: a line for each finding, its remedy below it, the verdict last."""
    wide = max((len(finding.title) for finding in found.findings), default=0)
    lines: list[str] = []
    for lane, group in by_lane(found.findings):
        lines += [lane or "both", *(line for finding in group for line in _lines(finding, wide)), ""]
    return "\n".join([*lines, f"{'Ready' if found.ready else 'NOT READY'}: {found.why}."])


def _lines(finding: Finding, wide: int) -> Iterator[str]:
    indent = " " * 11
    yield f"  {SIGNS[finding.level]:<7}  {finding.title:<{wide}}  {finding.detail}"
    if finding.remedy:
        yield indent + finding.remedy
    if finding.code:
        yield f"{indent}    {finding.code}"
