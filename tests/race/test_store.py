"""Races on disk: what a kill leaves, old and newer files, broken disks, races deleted while they run."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import anyio
import msgspec
import pytest
import structlog

from app.errors import SettingsError
from app.race.events import Event
from app.race.store import Store
from app.race.summary import RaceSummary, fold, summarize
from tests.race.helpers import chunk, ended, meta, over, sent, spec, started, store_at, until

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).resolve().parents[2]
EVENTS: list[Event] = [
    started(),
    sent("baseline", 1),
    chunk("baseline", 5, 2, text="Hi 🫠\u2028"),
    ended("baseline", 6),
    sent("speculative", 1),
    ended("speculative", 7, "cut_off"),
    over(8, "partial"),
]


def put(store: Store, race_id: str, events: list[Event] = EVENTS) -> RaceSummary:
    """A race written as the hub writes it."""
    about = meta(race_id)
    store.begin(about)
    for n, event in enumerate(events, start=1):
        store.keep(race_id, n, event)
    summary = summarize(about, fold(events))
    if fold(events).over:
        store.finish(summary)
    return summary


async def test_a_race_reads_back_as_it_was(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    summary = put(store, "r1")
    await store.written()
    found = await store.race("r1")
    assert found is not None
    assert (found.meta, found.events) == (meta("r1"), EVENTS)
    assert await store.summaries(limit=5) == [summary]
    assert await store.race("other") is None
    store.close()


async def test_it_is_still_there_after_a_restart(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    put(store, "r1")
    store.close()
    again = store_at(tmp_path)
    found = await again.race("r1")
    assert found is not None
    assert found.events == EVENTS
    assert [race.status for race in await again.summaries(limit=5)] == ["partial"]
    again.close()


async def test_the_list_pages_without_gaps_or_repeats(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    for n in range(7):
        put(store, f"r{n}")
    store.begin(meta("running"))
    await store.written()
    seen: list[str] = []
    before: str | None = None
    while page := await store.summaries(limit=3, before=before):
        assert len(page) <= 3
        seen += [race.id for race in page]
        before = seen[-1]
        put(store, f"new{len(seen)}")  # newer races do not shift the pages
        await store.written()
    assert seen == [f"r{n}" for n in reversed(range(7))]
    assert [race.id for race in await store.summaries(limit=2, before="no such race")] == ["new7", "new6"]
    store.close()


async def test_a_deleted_race_is_gone_with_its_events(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    put(store, "r1")
    put(store, "r2")
    store.delete("r1")
    await store.written()
    assert await store.race("r1") is None
    assert [race.id for race in await store.summaries(limit=5)] == ["r2"]
    store.close()
    with sqlite3.connect(tmp_path / "races.sqlite3") as db:
        assert db.execute("SELECT DISTINCT race_id FROM events").fetchall() == [("r2",)]
    db.close()


async def test_a_race_deleted_while_it_runs_takes_no_more_events(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    about = meta("r1")
    store.begin(about)
    store.keep("r1", 1, EVENTS[0])
    store.delete("r1")
    for n, event in enumerate(EVENTS[1:], start=2):
        store.keep("r1", n, event)
    store.finish(summarize(about, fold(EVENTS)))
    put(store, "r2")
    await store.written()
    assert store.broken is None
    assert await store.race("r1") is None
    assert [race.id for race in await store.summaries(limit=5)] == ["r2"]
    store.close()


# ------------------------------------------------------------------------------------------------ a kill
SCRIPT = """
import sys, time
from pathlib import Path
from app.race.store import Store
from tests.race.helpers import chunk, meta, sent, started

store = Store(Path(sys.argv[1]))
store.open()
store.begin(meta("killed"))
store.keep("killed", 1, started())
store.keep("killed", 2, sent("baseline"))
n, began = 2, time.monotonic()
while True:
    n += 1
    store.keep("killed", n, chunk("baseline", (time.monotonic() - began) * 1000, 1))
    print(n, flush=True)
    time.sleep(0.01)
"""


async def test_a_killed_app_loses_at_most_a_second_and_its_race_is_shown_as_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "races.sqlite3"
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        told: list[tuple[int, float]] = []
        deadline = None
        for line in process.stdout:
            now = time.monotonic()
            deadline = deadline or now + 1.5
            told.append((int(line), now))
            if now > deadline:
                process.kill()  # SIGKILL, in the middle of everything
                break
    last = told[-1][1]
    due = max(n for n, at in told if at < last - 1.0)
    store = store_at(tmp_path)
    found = await store.race("killed")
    assert found is not None
    *events, end = found.events
    assert len(events) >= due
    assert end == over(fold(events).now_ms, "interrupted")
    assert [e.text for e in events[2:]] == ["x"] * (len(events) - 2)  # type: ignore[attr-defined]
    (summary,) = await store.summaries(limit=5)
    assert (summary.id, summary.status) == ("killed", "interrupted")
    assert summary.lanes["baseline"].completion_tokens == len(events) - 2
    store.close()


async def test_an_unfinished_race_is_interrupted_once(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    put(store, "r1", EVENTS[:3])
    store.close()
    for _ in range(2):
        again = store_at(tmp_path)
        found = await again.race("r1")
        assert found is not None
        assert found.events == [*EVENTS[:3], over(5, "interrupted")]
        assert [race.status for race in await again.summaries(limit=5)] == ["interrupted"]
        again.close()


async def test_a_race_whose_end_was_written_but_not_its_summary_keeps_its_end(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    store.begin(meta("r1"))
    for n, event in enumerate(EVENTS, start=1):
        store.keep("r1", n, event)
    store.close()
    again = store_at(tmp_path)
    found = await again.race("r1")
    assert found is not None
    assert found.events == EVENTS
    assert [race.status for race in await again.summaries(limit=5)] == ["partial"]
    again.close()


async def test_a_race_without_a_single_event_is_interrupted(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    store.begin(meta("r1"))
    store.close()
    again = store_at(tmp_path)
    assert [race.status for race in await again.summaries(limit=5)] == ["interrupted"]
    again.close()


async def test_one_unreadable_race_does_not_keep_the_app_from_starting(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    put(store, "good", EVENTS[:3])
    put(store, "bad", EVENTS[:3])
    store.close()
    db = sqlite3.connect(tmp_path / "races.sqlite3")
    with db:
        db.execute("UPDATE events SET batch = '[{\"type\":\"of a later version\"}]' WHERE race_id = 'bad'")
    db.close()
    try:
        again = store_at(tmp_path)
    except SettingsError:
        return  # one clear line is as good
    assert "good" in [race.id for race in await again.summaries(limit=5)]
    again.close()


# ------------------------------------------------------------------------------------------------ the file
async def test_a_fresh_file_has_the_newest_version_and_a_second_start_changes_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        store_at(tmp_path).close()
        db = sqlite3.connect(tmp_path / "races.sqlite3")
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        db.close()


async def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "races.sqlite3"
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(SettingsError) as caught:
        Store(path).open()
    assert "newer version" in caught.value.reason
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (99,)
    assert db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    db.close()


@pytest.mark.parametrize("trouble", ["no database", "a folder", "a file in the way"])
async def test_a_path_that_cannot_be_used_is_one_clear_sentence(tmp_path: Path, trouble: str) -> None:
    path = tmp_path / "races.sqlite3"
    if trouble == "no database":
        path.write_bytes(b"hello " * 1000)
    elif trouble == "a folder":
        path.mkdir()
    else:
        (tmp_path / "file").write_text("")
        path = tmp_path / "file" / "races.sqlite3"
    with pytest.raises(SettingsError) as caught:
        Store(path).open()
    assert caught.value.field == "SPECRACE_DATABASE"
    assert "\n" not in str(caught.value)


async def test_the_folder_of_the_file_is_made(tmp_path: Path) -> None:
    store = Store(tmp_path / "a" / "b" / "races.sqlite3")
    store.open()
    store.close()
    assert (tmp_path / "a" / "b" / "races.sqlite3").exists()


# ------------------------------------------------------------------------------------------------ trouble
class Broken:
    """A disk that takes nothing while this lasts: the table of events is hidden from the writer."""

    def __init__(self, folder: Path) -> None:
        self._db = sqlite3.connect(folder / "races.sqlite3")

    def __enter__(self) -> None:
        self._rename("events", "hidden")

    def __exit__(self, *_: object) -> None:
        self._rename("hidden", "events")
        self._db.close()

    def _rename(self, one: str, other: str) -> None:
        with self._db:
            self._db.execute(f"ALTER TABLE {one} RENAME TO {other}")


async def test_a_disk_that_takes_no_more_is_reported_and_the_app_goes_on(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    put(store, "before")
    await store.written()
    with structlog.testing.capture_logs() as logged:
        with Broken(tmp_path):
            put(store, "lost")
            await until(lambda: store.broken)
            assert {entry["log_level"] for entry in logged} == {"error"}
        put(store, "after")
        await until(lambda: store.broken is None)
    found = await store.race("after")
    assert found is not None
    assert found.events == EVENTS
    assert await store.race("before") is not None
    store.close()


async def test_a_moment_of_trouble_leaves_no_hole_in_a_race(tmp_path: Path) -> None:
    """A lock or a full disk for a moment: what could not be written then is written later, or the race is not kept;
    never a race whose middle is missing and whose figures are wrong without a word."""
    store = store_at(tmp_path)
    events: list[Event] = [started(), sent("baseline", 1), *(chunk("baseline", t, 1) for t in range(2, 12)), over(12)]
    store.begin(meta("r1"))
    for n, event in enumerate(events[:5], start=1):
        store.keep("r1", n, event)
    await store.written()
    with structlog.testing.capture_logs():
        with Broken(tmp_path):
            for n, event in enumerate(events[5:8], start=6):
                store.keep("r1", n, event)
            await until(lambda: store.broken)
        for n, event in enumerate(events[8:], start=9):
            store.keep("r1", n, event)
        await until(lambda: store.broken is None)
    found = await store.race("r1")
    store.close()
    assert found is None or found.events == events


async def test_waiting_for_what_cannot_be_written_ends_soon(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    with structlog.testing.capture_logs(), Broken(tmp_path):
        put(store, "lost")
        began = time.monotonic()
        await store.written()
        assert time.monotonic() - began < 3
    store.close()


async def test_text_that_cannot_be_written_does_not_end_the_writer(tmp_path: Path) -> None:
    # half of a surrogate pair (a form in UTF-7 can hold one): UnicodeEncodeError, not sqlite3.Error
    store = store_at(tmp_path)
    with structlog.testing.capture_logs():
        store.begin(meta("bad", spec=spec("\ud800")))
        put(store, "good")
        await anyio.sleep(0.1)
        put(store, "after")
        with anyio.move_on_after(3):
            while await store.race("after") is None:  # noqa: ASYNC110 - a thread writes it
                await anyio.sleep(0.02)
    assert await store.race("after") is not None
    store.close()


async def test_what_was_waited_for_is_there_to_be_read(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    for n in range(4):
        put(store, f"r{n}")
        await store.written()
        assert await store.race(f"r{n}") is not None
    store.close()


async def test_closing_writes_what_is_queued(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    put(store, "r1")
    store.close()
    db = sqlite3.connect(tmp_path / "races.sqlite3")
    kept = [event for (batch,) in db.execute("SELECT batch FROM events") for event in msgspec.json.decode(batch)]
    assert len(kept) == len(EVENTS)
    assert msgspec.json.decode(db.execute("SELECT summary FROM races").fetchone()[0])["status"] == "partial"
    db.close()


async def test_writing_never_waits_for_the_disk(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    lock = sqlite3.connect(tmp_path / "races.sqlite3", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    put(store, "r1")
    assert time.monotonic() - began < 0.2
    lock.execute("ROLLBACK")
    lock.close()
    await store.written()
    assert await store.race("r1") is not None
    store.close()
