"""A series as a file: JSON of the contract, CSV with every race, Markdown to paste into an issue."""

from __future__ import annotations

import msgspec

from app.race import report
from app.race.repeats import Lap
from app.race.series import Series, summarize_series
from app.race.types import LANES


def as_json(series: Series) -> bytes:
    """Indented JSON, as GET /api/series/{id} gives it."""
    return msgspec.json.format(msgspec.json.encode(summarize_series(series)), indent=2) + b"\n"


def as_csv(series: Series) -> bytes:
    """One line for each race and lane, whether it counted or not."""
    return report.as_csv(_report(series))


def as_markdown(series: Series) -> str:
    """What was measured, the comparison, both lanes, and what could spoil them."""
    return report.as_markdown(_report(series))


def _report(series: Series) -> report.Report:
    laps = [
        Lap(
            races=(race,),
            busy_ms={lane: race.lanes[lane].e2e_ms for lane in LANES},
            number=race.series_number or number,
            first=race.first,
        )
        for number, race in enumerate(series.over, start=1)
    ]
    asked, like = series.asked, series.over[0] if series.over else None
    drafting = None if like is None else like.lanes["speculative"]
    head = report.Head(
        at="" if like is None else like.created_at,
        models={lane: None if like is None else like.lanes[lane].model for lane in LANES},
        versions=dict.fromkeys(LANES, None if like is None else like.vllm),
        speculating=None if drafting is None else drafting.speculating,
        method=None if drafting is None else drafting.method,
        num_speculative_tokens=None if drafting is None else drafting.num_speculative_tokens,
        schedule=asked.schedule,
        repeats=asked.races,
        warm_up=None,
        fresh_cache=asked.fresh_cache,
    )
    row = report.row(asked.workload or "own prompt", 1, laps, asked=asked.races)
    ended = None if series.status == "finished" else f"{series.status} with {len(laps)} of {asked.races} races"
    return report.Report(head=head, rows=(row,), ended=ended)
