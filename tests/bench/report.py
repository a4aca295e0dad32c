"""The findings of a benchmark as lines for people."""

from __future__ import annotations

import statistics
from typing import Any

FRAME_INTERVAL_MS = 50
P99_GOAL_MS = FRAME_INTERVAL_MS + 5
RATIO_GOAL = 1.0
FIRST_LOAD_GOAL_KB = 60

_ROWS = (
    ("CPU per chunk", "cpu_us_per_chunk", "us"),
    ("added, p50", "added_p50_ms", "ms"),
    ("added, p99", "added_p99_ms", "ms"),
    ("packets with tokens", "frames_per_s", "/s"),
    ("gap between them, p99", "gap_p99_ms", "ms"),
    ("bytes per chunk", "bytes_per_chunk", "B"),
)


def report(found: dict[str, Any]) -> str:
    machine = found["machine"]
    load = f"load {machine['load_1m']:.1f} at the start"
    lines = [f"{machine['cores']} cores, Python {machine['python']}, {load}; median [lowest to highest]"]
    for name, rate in found["rates"].items():
        lines += ["", f"{name} chunks a second, one viewer", *_rate(rate)]
    return "\n".join([*lines, "", _memory(found["memory"]), _idle(found), *_first_load(found["first_load"])])


def _line(name: str, values: list[float], unit: str) -> str:
    return f"  {name:<30} {statistics.median(values):9.2f} {unit:<4} [{min(values):.2f} to {max(values):.2f}]"


def _goal(text: str, met: bool) -> str:
    return f"  goal: {text}: {'met' if met else 'NOT MET'}"


def _rate(rate: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for arm in ("relay", "app"):
        lines += [_line(f"{arm}: {title}", [run[key] for run in rate[arm]], unit) for title, key, unit in _ROWS]
        lost = [run["lost"] for run in rate[arm]]
        if any(lost):
            lines.append(f"  {arm}: LOST tokens {lost}")
    p99 = statistics.median(run["added_p99_ms"] for run in rate["app"])
    return [
        *lines,
        _line("CPU, app / relay", rate["ratio"], "x"),
        _goal(f"CPU at most {RATIO_GOAL}x the relay's", statistics.median(rate["ratio"]) <= RATIO_GOAL),
        _goal(f"added p99 at most {P99_GOAL_MS} ms, a frame's interval and 5", p99 <= P99_GOAL_MS),
    ]


def _memory(memory: dict[str, Any]) -> str:
    span = f"{memory['rss_before_mb']:.1f} -> {memory['rss_after_mb']:.1f} MB, highest {memory['rss_highest_mb']:.1f}"
    a_race, later = memory["rss_growth_mb_per_race"], memory["rss_growth_second_half_mb"]
    growth = f"{a_race:+.2f} MB a race, {later:+.1f} in the later half"
    return f"memory over {memory['tokens']:,} tokens in {memory['races']} races: {span} ({growth})"


def _idle(found: dict[str, Any]) -> str:
    idle = found["idle_cpu_percent"]
    share = f"idle: app {idle['app']:.2f} % of a core, relay {idle['relay']:.2f} %"
    return f"{share}; page up {found['page_up_s']:.2f} s after the command"


def _first_load(load: dict[str, Any]) -> list[str]:
    size = load["compressed_bytes"]
    return [
        f"first load: {size / 1000:.1f} kB compressed ({load['how']}), {load['requests']} requests",
        *(f"  {bytes_:7,} B  {path}" for path, bytes_ in load["files"].items()),
        _goal(f"at most {FIRST_LOAD_GOAL_KB} kB", size <= FIRST_LOAD_GOAL_KB * 1000),
        _goal("no other host", not load["other_hosts"]) + "".join(f" {host}" for host in load["other_hosts"]),
    ]
