"""A check's verdict and how it reads: a problem alone keeps from the stage, and no sign is a colour."""

from __future__ import annotations

import msgspec
import pytest

from app.ops.findings import Finding, Level, as_text, by_lane, report


def finding(level: Level, title: str = "Thing", lane: str | None = None, *remedy: str) -> Finding:
    sentence, code = (*remedy, None, None)[:2]
    return Finding(key="x", lane=lane, level=level, title=title, detail="1 ms", remedy=sentence, code=code)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("levels", "ready", "why"),
    [
        (["ok", "note"], True, "no problem and no warning"),
        (["ok", "warning"], True, "no problem, 1 warning: thing"),
        (["warning", "warning", "note"], True, "no problem, 2 warnings: thing; thing"),
        (["problem", "warning"], False, "1 problem: thing: 1 ms"),
        ([], True, "no problem and no warning"),
    ],
)
def test_only_a_problem_keeps_from_the_stage(levels: list[Level], ready: bool, why: str) -> None:
    found = report([finding(level) for level in levels], at="2026-11-30T08:00:00Z", took_s=1.26)
    assert (found.ready, found.why, found.took_s) == (ready, why, 1.3)


def test_a_lane_is_named_in_the_verdict() -> None:
    found = report([finding("problem", lane="baseline"), finding("problem", "Race")], at="", took_s=0)
    assert found.why == "2 problems: baseline, thing: 1 ms; race: 1 ms"


def test_groups_come_server_by_server_and_then_the_pair() -> None:
    findings = [finding("ok"), finding("ok", lane="speculative"), finding("note", lane="baseline")]
    assert [lane for lane, _ in by_lane(findings)] == ["baseline", "speculative", None]
    assert [lane for lane, _ in by_lane(findings[:1])] == [None]


def test_the_terminal_shows_a_line_a_finding_its_remedy_below_and_the_verdict_last() -> None:
    found = report(
        [
            finding("ok", "Short", "baseline"),
            finding("problem", "Rather long", "baseline", "Start it with", "--flag"),
            finding("warning", "Pair", None, "Do something"),
        ],
        at="",
        took_s=0,
    )
    assert as_text(found).split("\n") == [
        "baseline",
        "  ok       Short        1 ms",
        "  PROBLEM  Rather long  1 ms",
        "           Start it with",
        "               --flag",
        "",
        "both",
        "  warning  Pair         1 ms",
        "           Do something",
        "",
        "NOT READY: 1 problem: baseline, rather long: 1 ms.",
    ]


def test_json_has_ready_and_the_findings() -> None:
    body = msgspec.json.decode(msgspec.json.encode(report([finding("note")], at="t", took_s=0)))
    assert body["ready"] is True
    assert body["findings"][0] == {
        "key": "x",
        "lane": None,
        "level": "note",
        "title": "Thing",
        "detail": "1 ms",
        "remedy": None,
        "code": None,
    }
