"""One race as a file: JSON of the contract, its figures as CSV, or a recording that can be played."""

from __future__ import annotations

import csv
import io
from typing import cast

import msgspec
from msgspec import structs

from app.errors import SettingsError
from app.race.replay import recording_bytes
from app.race.summary import RaceSummary, StoredRace, fold, summarize
from app.race.types import LANES, LaneName, Recorded

FIGURES = (
    "status",
    "model",
    "method",
    "num_speculative_tokens",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "tokens_estimated",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "tokens_per_second",
    "decode_tokens_per_second",
)
ACCEPTANCE = {
    "acceptance_source": "source",
    "acceptance_rate": "rate",
    "mean_acceptance_length": "mean_length",
    "effective_tokens_per_pass": "effective_tokens_per_pass",
    "share_of_output_drafted": "share_of_output",
    "per_token_alpha": "alpha",
    "speculative_steps": "drafts",
    "drafted_tokens": "drafted",
    "accepted_tokens": "accepted",
    "acceptance_per_position": "per_position",
    "steps_by_accepted_tokens": "histogram",
    "acceptance_exclusive": "exclusive",
    "acceptance_doubt": "doubt",
}
"""Columns and the fields of types.Acceptance in them; a list is one cell, its items parted by spaces."""
COLUMNS = (
    *("race", "workload", "schedule", "lane", *FIGURES),
    *ACCEPTANCE,
    *("speedup", "decode_speedup", "verdict", "text"),
)


def summary_of(race: StoredRace) -> RaceSummary:
    """The race's JSON, folded from its events."""
    return summarize(race.meta, fold(race.events))


def as_json(race: StoredRace) -> bytes:
    """Indented JSON, as GET /api/races/{id} gives it."""
    return msgspec.json.format(msgspec.json.encode(summary_of(race)), indent=2) + b"\n"


def as_csv(race: StoredRace) -> bytes:
    """One line a lane; a number that does not exist is an empty cell."""
    summary = summary_of(race)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows(cells(summary, name) for name in LANES)
    return text.getvalue().encode()


def cells(summary: RaceSummary, name: LaneName) -> list[object]:
    """One lane of a race, as COLUMNS name it."""
    lane, compared = summary.lanes[name], summary.comparison
    figures = structs.asdict(lane)
    took = None if lane.acceptance is None else structs.asdict(lane.acceptance)
    return [
        summary.id,
        summary.workload,
        summary.schedule,
        name,
        *(_cell(figures[figure]) for figure in FIGURES),
        *(None if took is None else _cell(took[field]) for field in ACCEPTANCE.values()),
        compared.speedup,
        compared.decode_speedup,
        compared.verdict,
        compared.text,
    ]


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(str(item) for item in cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value


def as_recording(race: StoredRace, hardware: str | None) -> bytes:
    """The race as a recording, labelled with hardware, vLLM version and date.

    Raises:
        SettingsError: it is not labelled yet and ``hardware`` is missing.
    """
    meta = race.meta
    if meta.recorded is None:
        if not hardware:
            raise SettingsError(
                "--hardware", "a recording says where it ran", 'Give --hardware "2 vCPU, 24 GB, no GPU"'
            )
        meta = structs.replace(
            meta, recorded=Recorded(on=hardware, vllm=meta.vllm or "unknown version", at=meta.created_at)
        )
    return recording_bytes(StoredRace(meta, race.events))
