"""``specrace check``: both servers and a short race looked at once, and what was found on the terminal.

With ``--lossless`` sampled answers of both are compared, too (app.race.sampling), and become one finding more.
"""

from __future__ import annotations

import sys
import time

import anyio
import msgspec
import typer

from app.main import make_lanes
from app.ops.findings import Finding, Report, as_text, report
from app.ops.preflight import check as look
from app.race.lossless import Lossless
from app.race.lossless_report import headline, lines, remedy
from app.race.sampling import SAMPLES, Progress, check_lossless
from app.race.types import LANES, LaneName
from app.race.workloads import load_workloads
from app.server import configure_logs
from app.settings import Settings

__all__ = ["SAMPLES", "check"]

TOLD_EVERY_S = 2.0


class WithLossless(Report, frozen=True, kw_only=True):
    """A report, and the comparison of sampled answers that went into it."""

    lossless: Lossless


def check(settings: Settings, *, as_json: bool, samples: int | None = None) -> int:
    """Check the pair of ``settings`` and print the report. 0: ready for the stage, 1: not.

    ``samples`` answers for each probe of either server are compared as well; None: they are not.

    Raises:
        SettingsError: a server is not configured, or the workloads cannot be read.
    """
    endpoints = settings.endpoints()
    configure_logs()
    workloads = load_workloads(settings.workloads)
    lanes = make_lanes(settings, endpoints, {})

    async def found() -> Report:
        try:
            seen = await look(lanes, workloads, _say)
            if samples is None:
                return seen
            return _with(seen, await check_lossless(lanes, samples=samples, progress=_progress()))
        finally:
            for lane in lanes.values():
                await lane.upstream.close()

    result = anyio.run(found, backend_options={"use_uvloop": True})
    typer.echo(msgspec.json.encode(result).decode() if as_json else _text(result))
    return 0 if result.ready else 1


def _text(result: Report) -> str:
    sampled = [*lines(result.lossless), ""] if isinstance(result, WithLossless) else []
    return "\n".join([*sampled, as_text(result)])


def _with(seen: Report, lossless: Lossless) -> WithLossless:
    """The report with one finding more."""
    finding = Finding(
        key="lossless",
        level="ok" if lossless.verdict == "no_difference" else "problem",
        title="Same distribution",
        detail=headline(lossless),
        remedy=remedy(lossless),
    )
    whole = report([*seen.findings, finding], at=seen.at, took_s=seen.took_s + (lossless.seconds or 0.0))
    return WithLossless(
        ready=whole.ready, why=whole.why, at=whole.at, took_s=whole.took_s, findings=whole.findings, lossless=lossless
    )


def _progress() -> Progress:
    """Says from time to time how far the sampling is."""
    done: dict[LaneName, str] = dict.fromkeys(LANES, "none")
    told_at = time.monotonic()

    def note(lane: LaneName, came: int, wanted: int) -> None:
        nonlocal told_at
        done[lane] = f"{came:,} of {wanted:,}"
        if time.monotonic() - told_at >= TOLD_EVERY_S:
            told_at = time.monotonic()
            _say("sampled answers: " + ", ".join(f"{name} {done[name]}" for name in LANES))

    return note


def _say(doing: str) -> None:
    """Somebody who watches sees that it goes on; nothing of it gets into a pipe or a log."""
    if sys.stderr.isatty():
        typer.echo(f"{doing} ...", err=True)
