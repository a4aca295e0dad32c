"""A stored race played into a fresh log at its recorded pace: the same door, the same frames, the same figures.

A recording is one gzipped JSON-lines file: the race's meta on the first line, then its events.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import msgspec

from app.errors import SettingsError
from app.race.events import Event, RaceFinished, RaceQueued, from_json, to_json
from app.race.summary import RaceMeta, StoredRace


async def play(events: Sequence[Event], append: Callable[[Event], None], now_ms: Callable[[], float]) -> None:
    """Append each event when the race clock ``now_ms`` reaches its time. Figures are folded from the recorded times
    and are the same as in the race."""
    event = None
    for event in events:
        await _until(event.t_ms, now_ms)
        append(event)
    if not isinstance(event, RaceFinished):
        # a recording without its end was cut: say so rather than leave viewers waiting
        append(RaceFinished(t_ms=now_ms(), status="interrupted"))


async def _until(t_ms: float, now_ms: Callable[[], float]) -> None:
    """Never early: an event from the future would make a negative span of whatever is read off the clock."""
    while (wait_ms := t_ms - now_ms()) > 0:  # noqa: ASYNC110  # there is nothing to wait for but the clock
        await anyio.sleep(wait_ms / 1000)


def begins_at_ms(events: Sequence[Event]) -> float:
    """Race time at which a replay starts: the wait in the queue is not played again."""
    return next((event.t_ms for event in events if not isinstance(event, RaceQueued)), 0.0)


def recording_bytes(race: StoredRace) -> bytes:
    """``race`` as the file of a recording; the same race gives the same bytes."""
    lines = [msgspec.json.encode(race.meta), *(to_json(event) for event in race.events)]
    return gzip.compress(b"\n".join(lines) + b"\n", mtime=0)


def read_recording(path: Path) -> StoredRace:
    """Read a recording.

    Raises:
        SettingsError: the file is none, or is not labelled with hardware, version and date.
    """
    try:
        first, *lines = gzip.decompress(path.read_bytes()).splitlines()
        race = StoredRace(msgspec.json.decode(first, type=RaceMeta), [from_json(line) for line in lines])
    except (OSError, EOFError, ValueError, zlib.error, msgspec.DecodeError) as error:
        raise SettingsError(path.name, f"is no recording ({error})", "Give a file that Specrace wrote") from None
    if race.meta.recorded is None:
        raise SettingsError(
            path.name, "has no label (hardware, vLLM version, date)", "Pin the race as a recording first"
        )
    return race
