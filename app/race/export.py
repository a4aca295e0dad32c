"""One race as a file: JSON of the contract, its figures as CSV, or a recording that can be played."""

from __future__ import annotations

import csv
import io

import msgspec
from msgspec import structs

from app.errors import SettingsError
from app.race.replay import recording_bytes
from app.race.summary import RaceSummary, StoredRace, fold, summarize
from app.race.types import LANES, Recorded

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
    head = [
        "race",
        "workload",
        "schedule",
        "lane",
        *FIGURES,
        "acceptance_source",
        "acceptance_rate",
        "mean_acceptance_length",
    ]
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*head, "speedup", "decode_speedup", "verdict", "text"])
    for name in LANES:
        lane, compared = summary.lanes[name], summary.comparison
        cells = structs.asdict(lane)
        took = lane.acceptance
        table.writerow(
            [summary.id, summary.workload, summary.schedule, name]
            + [str(cell).lower() if isinstance(cell := cells[figure], bool) else cell for figure in FIGURES]
            + ([took.source, took.rate, took.mean_length] if took else [None, None, None])
            + [compared.speedup, compared.decode_speedup, compared.verdict, compared.text]
        )
    return text.getvalue().encode()


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
