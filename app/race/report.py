"""The result of repeated races: Markdown to paste into an issue, CSV to recompute from, JSON. Pure.

Every figure is "median [lowest–highest]", and says of how many when some are missing. A row is one workload at one
load; loads are never mixed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from app.race.export import COLUMNS, cells
from app.race.repeats import Lap, Repeats, Spread, cold_left_out, counted, of_laps
from app.race.types import LANES, AcceptanceSource, LaneName, LaneStatus, Schedule

NA = "n/a"
SOURCES: dict[AcceptanceSource, str] = {"request": "per-request record", "server": "server counters"}
_ENDINGS: dict[LaneStatus, str] = {
    "waiting": "brought nothing",
    "failed": "failed",
    "cut_off": "was cut off",
    "aborted": "was aborted by its server",
    "stopped": "was stopped",
}
_HEADINGS = ("workload", "at once", "counted", "speedup", "decode speedup", "acceptance", "mean acceptance length")
_LANE_HEADINGS = ("workload", "at once", "lane", "TTFT ms", "TPOT ms", "tokens/s", "all tokens/s", "tokens")
_CSV_BEFORE = ("at_once", "repeat", "request", "counted", "first", "temperature", "seed", "max_tokens", "busy_ms")
_CSV_AFTER = ("drafts", "drafted", "accepted", "tau", "step_cost", "caveats")


class Head(Struct, frozen=True, kw_only=True):
    """What was measured. ``at`` is ISO 8601, UTC; a server's version is None when it does not tell. ``speculating``
    is None when the server gives no way to know, ``method`` is "unknown" when it does not say how."""

    at: str
    models: dict[LaneName, str | None]
    versions: dict[LaneName, str | None]
    speculating: bool | None
    method: str | None
    num_speculative_tokens: int | None
    schedule: Schedule
    repeats: int
    warm_up: bool | None
    """None where nobody noted it."""
    fresh_cache: bool


class Row(Struct, frozen=True, kw_only=True):
    """One workload at one load (``at_once`` requests at once on a lane)."""

    workload: str
    at_once: int
    result: Repeats
    laps: tuple[Lap, ...]


class Report(Struct, frozen=True, kw_only=True):
    """All of it. ``ended`` says why it ended before everything was run, None when it did not."""

    head: Head
    rows: tuple[Row, ...]
    ended: str | None = None


def row(workload: str, at_once: int, laps: Sequence[Lap], *, asked: int) -> Row:
    """The row of these laps."""
    return Row(workload=workload, at_once=at_once, result=of_laps(laps, asked=asked), laps=tuple(laps))


def lap_line(workload: str, at_once: int, lap: Lap, *, asked: int) -> str:
    """One lap in one line, for those who wait."""
    begin = f"{workload}, {at_once} at once, repeat {lap.number} of {asked} ({lap.first} first)"
    if not lap.finished:
        return f"{begin}: " + "; ".join(f"does not count: {reason}" for reason in _unfinished(lap))
    line = of_laps([lap], asked=1)
    speedup = _shown(line.speedup, lambda v: f"{v:.2f}x", 1)
    decode = _shown(line.decode_speedup, lambda v: f"{v:.2f}x", 1)
    cold = "; cold start: it counts only if all are cold" if lap.cold else ""
    return f"{begin}: speedup {speedup}, decode {decode}, acceptance {_percent(line.acceptance_rate, 1)}{cold}"


def as_json(report: Report) -> bytes:
    """Indented JSON: the results, and every race as the contract's JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def as_csv(report: Report) -> bytes:
    """One line for each request and lane, whether it counted or not; a number that does not exist is an empty cell."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*_CSV_BEFORE, *COLUMNS, *_CSV_AFTER])
    for line in report.rows:
        those = counted(line.laps)
        for lap in line.laps:
            for name in LANES:
                table.writerows(_csv_lines(line, lap, name, counts=lap in those))
    return text.getvalue().encode()


def _csv_lines(line: Row, lap: Lap, name: LaneName, *, counts: bool) -> list[list[object]]:
    found: list[list[object]] = []
    for request, race in enumerate(lap.races, start=1):
        sampling, compared, took = race.sampling, race.comparison, race.lanes[name].acceptance
        before = [line.at_once, lap.number, request, str(counts).lower(), lap.first]
        before += [sampling.temperature, sampling.seed, sampling.max_tokens, lap.busy_ms[name]]
        drafts = (took.drafts, took.drafted, took.accepted) if took else (None, None, None)
        after = [*drafts, compared.tau, compared.step_cost, " ".join(compared.caveats)]
        found.append([*before, *cells(race, name), *after])
    return found


def as_markdown(report: Report) -> str:
    """A header, a table of the comparison, a table of both lanes, and what could spoil them."""
    notes = [note for line in report.rows for note in _notes(line)]
    parts = ["\n".join(_head(report))]
    if report.rows:
        parts.append(_table((*_HEADINGS, "tokens per pass", "text identical", "verdict"), map(_compared, report.rows)))
        lanes = [_lane(line, name) for line in report.rows for name in LANES]
        parts.append(_table(_LANE_HEADINGS, lanes))
    if notes:
        parts.append("\n".join(notes))
    return "\n\n".join(parts) + "\n"


def _head(report: Report) -> list[str]:
    head = report.head
    b, s = (_plain(head.models[lane] or "not told") for lane in LANES)
    vb, vs = (_plain(head.versions[lane] or "version not told") for lane in LANES)
    method = "not told by the server" if head.method in (None, "unknown") else _plain(head.method or "")
    k = "" if head.num_speculative_tokens is None else f", k = {head.num_speculative_tokens}"
    drafting = "the speculative server does not speculate" if head.speculating is False else f"method {method}{k}"
    salt = "a cache salt for every request" if head.fresh_cache else "prefix cache as the servers have it"
    warm = "" if head.warm_up is None else "; warmed up" if head.warm_up else "; not warmed up"
    turns = "lanes in turn" if head.schedule == "in_turn" else "lanes together"
    found = [
        f"Specrace, {head.at}: plain vLLM against speculative decoding",
        "",
        f"- model: {b}" if b == s else f"- model: baseline {b}, speculative {s}",
        f"- speculation: {drafting}",
        f"- vLLM: {vb}" if vb == vs else f"- vLLM: baseline {vb}, speculative {vs}",
        f"- {head.repeats} repeats, {turns}, who goes first alternates; {salt}{warm}",
        "- figures are median [lowest–highest]; speedups are of paired runs",
    ]
    return [*found, f"- **ended early**: {_plain(report.ended)}"] if report.ended else found


def _compared(line: Row) -> list[str]:
    result = line.result
    of = result.counted
    source = " + ".join(SOURCES.get(one, one) for one in result.acceptance_sources)
    rate = _percent(result.acceptance_rate, of)
    return [
        _plain(line.workload),
        str(line.at_once),
        f"{result.counted} of {result.asked}",
        _shown(result.speedup, lambda v: f"{v:.2f}x", of),
        _shown(result.decode_speedup, lambda v: f"{v:.2f}x", of),
        f"{rate} ({source})" if source and result.acceptance_rate else rate,
        _shown(result.mean_length, lambda v: f"{v:.2f}", of),
        _shown(result.effective_tokens_per_pass, lambda v: f"{v:.2f}", of),
        _texts(result),
        _verdict(result, line.at_once),
    ]


def _lane(line: Row, name: LaneName) -> list[str]:
    lane, result = line.result.lanes[name], line.result
    return [
        _plain(line.workload),
        str(line.at_once),
        name,
        _shown(lane.ttft_ms, lambda v: f"{v:.2f}", result.requests),
        _shown(lane.tpot_ms, lambda v: f"{v:.2f}", result.requests),
        _shown(lane.tokens_per_second, lambda v: f"{v:.1f}", result.requests),
        _shown(lane.all_tokens_per_second, lambda v: f"{v:.1f}", result.counted),
        _shown(lane.completion_tokens, lambda v: f"{v:g}", result.requests),
    ]


def _texts(result: Repeats) -> str:
    compared = result.identical + result.diverged
    if compared:
        return f"{result.identical} of {compared}"
    return "not compared (sampled)" if result.not_comparable else NA


def _verdict(result: Repeats, at_once: int) -> str:
    if result.verdict is None:
        return f"none: {result.why_no_verdict}"
    said = f"{result.verdict.replace('_', ' ')} at {at_once} at once"
    return f"{said} ({result.cause.replace('_', ' ')})" if result.cause else said


def _notes(line: Row) -> list[str]:
    """What could spoil the row, and what does not count in it, one line each."""
    result = line.result
    where = f"- {_plain(line.workload)}, {line.at_once} at once:"
    held = ", ".join(f"{name.replace('_', ' ')} {n} of {result.requests}" for name, n in result.caveats.items())
    found = [f"{where} {held}"] if held else []
    if result.cold:
        cold = [str(lap.number) for lap in line.laps if lap.finished and lap.cold]
        which = f"repeat{'' if len(cold) == 1 else 's'} {', '.join(cold)}"
        found.append(f"{where} {cold_left_out(result.cold, 'race' if line.at_once == 1 else 'repeat')} ({which})")
    for lap in line.laps:
        found += [f"{where} repeat {lap.number} does not count: {reason}" for reason in _unfinished(lap)]
    return found


def _unfinished(lap: Lap) -> list[str]:
    """Why a lap did not finish: "baseline stopped", "speculative cut_off: It broke. Do this."."""
    found: list[str] = []
    for lane in LANES:
        open_ends = [race.lanes[lane] for race in lap.races if race.lanes[lane].status != "finished"]
        if open_ends:
            error = open_ends[0].error
            told = f"{error.kind}: {error.message}" if error else _ENDINGS.get(open_ends[0].status, "did not finish")
            many = f" ({len(open_ends)} of {len(lap.races)})" if len(lap.races) > 1 else ""
            found.append(f"{lane}{many} {_plain(told)}")
    return found


def _shown(found: Spread | None, form: Callable[[float], str], of: int) -> str:
    """ "2.47x [2.31–2.61]", and "(4 of 5)" behind it when one of five had no such value."""
    if found is None:
        return NA
    several = f" [{form(found.low)}–{form(found.high)}]" if len(found.values) > 1 else ""
    missing = f" ({len(found.values)} of {of})" if len(found.values) != of else ""
    return f"{form(found.median)}{several}{missing}"


def _percent(found: Spread | None, of: int) -> str:
    return _shown(found, lambda v: f"{100 * v:.1f}%", of)


def _table(head: Sequence[str], lines: Sequence[list[str]] | map[list[str]]) -> str:
    """A Markdown table whose columns also line up in a terminal."""
    rows = [list(head), *lines]
    widths = [max(len(line[i]) for line in rows) for i in range(len(head))]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in rows
    )


def _plain(text: str) -> str:
    """Somebody else's words in one line of a table."""
    return " ".join(text.split()).replace("|", "\\|")
