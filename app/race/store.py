"""Races for good: SQLite, one writer thread, WAL, migrations by user_version.

The loop only puts events on a queue; the thread writes them in one transaction a few times a second, so a killed app
leaves at most the last moment unwritten. Such a race is found at the next start and ended as interrupted.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
import msgspec
import structlog
from msgspec import Struct

from app.errors import SettingsError
from app.race.events import Event, RaceFinished
from app.race.summary import RaceMeta, RaceSummary, StoredRace, fold, summarize

WRITE_EVERY_S = 0.25
UNWRITTEN_LIMIT = 200_000
"""Events and races kept for a disk that comes back; older ones are lost."""

_MIGRATIONS = (
    """
    CREATE TABLE races (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        meta TEXT NOT NULL,
        summary TEXT
    );
    -- events in the batches in which they were written: a JSON array of events first_id, first_id + 1, ...
    CREATE TABLE events (
        race_id TEXT NOT NULL REFERENCES races(id) ON DELETE CASCADE,
        first_id INTEGER NOT NULL,
        batch TEXT NOT NULL,
        PRIMARY KEY (race_id, first_id)
    ) WITHOUT ROWID;
    """,
    # the races of a series name it in their meta; most races belong to none
    """
    CREATE INDEX races_of_series ON races (json_extract(meta, '$.series'))
        WHERE json_extract(meta, '$.series') IS NOT NULL;
    """,
)

_batches: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[Event])
_log = structlog.get_logger()
T = TypeVar("T")
_Work = Callable[[sqlite3.Connection], None]


class _Kept(Struct, frozen=True):
    race_id: str
    event_id: int
    event: Event


class Store:
    """The database. Open it once; writes may come from the event loop without waiting."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._work: queue.SimpleQueue[_Work | _Kept | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="store", daemon=True)
        self.broken: str | None = None
        """Why the last batch could not be written, None when all is well."""

    def open(self) -> None:
        """Create or migrate the file, end what an earlier process left unfinished, start the writer. Once.

        Raises:
            SettingsError: the file cannot be used.
        """
        if self._thread.is_alive():
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._connect()) as connection, connection:
                _migrate(connection, self._path)
                _interrupt_unfinished(connection)
        except (OSError, sqlite3.Error) as error:
            reason = f"{self._path.name} cannot be used as a database ({error})"
            raise SettingsError("SPECRACE_DATABASE", reason, "Give a file in a folder that can be written") from None
        self._thread.start()

    def close(self) -> None:
        """Write what is queued and end the thread."""
        self._work.put(None)
        self._thread.join(timeout=10)

    # --- writing (app.race.hub.Keeper) ------------------------------------------------------------------

    def begin(self, meta: RaceMeta) -> None:
        """A race exists."""
        self._work.put(
            lambda db: _run(
                db, "INSERT INTO races (id, meta) VALUES (?, ?)", meta.id, msgspec.json.encode(meta).decode()
            )
        )

    def keep(self, race_id: str, event_id: int, event: Event) -> None:
        """An event happened. Cheap: it is encoded and written by the thread, with what came beside it."""
        self._work.put(_Kept(race_id, event_id, event))

    def finish(self, summary: RaceSummary) -> None:
        """A race is over; its summary serves the list."""
        body = msgspec.json.encode(summary).decode()
        self._work.put(lambda db: _run(db, "UPDATE races SET summary = ? WHERE id = ?", body, summary.id))

    def delete(self, race_id: str) -> None:
        """Forget a race."""
        self._work.put(lambda db: _run(db, "DELETE FROM races WHERE id = ?", race_id))

    async def written(self) -> None:
        """Wait until everything queued so far is on disk, or could not be written (see ``broken``)."""
        done = threading.Event()
        self._work.put(done)
        await anyio.to_thread.run_sync(done.wait, 10.0)

    # --- reading ----------------------------------------------------------------------------------------

    async def race(self, race_id: str) -> StoredRace | None:
        """One race with all its events."""

        def read(db: sqlite3.Connection) -> StoredRace | None:
            row = db.execute("SELECT meta FROM races WHERE id = ?", (race_id,)).fetchone()
            if row is None:
                return None
            try:
                return StoredRace(msgspec.json.decode(row[0], type=RaceMeta), _read_events(db, race_id))
            except msgspec.ValidationError as error:
                _log.error("a kept race cannot be read", race=race_id, error=str(error))
                return None

        return await self._read(read)

    async def knows(self, race_id: str) -> bool:
        """Whether there is such a race, over or not."""
        return await self._read(
            lambda db: db.execute("SELECT 1 FROM races WHERE id = ?", (race_id,)).fetchone() is not None
        )

    async def summaries(self, *, limit: int, before: str | None = None) -> list[RaceSummary]:
        """Races that are over, newest first; ``before`` is the id of the last one already seen."""

        def read(db: sqlite3.Connection) -> list[RaceSummary]:
            rows = db.execute(
                "SELECT summary FROM races WHERE summary IS NOT NULL"
                " AND seq < coalesce((SELECT seq FROM races WHERE id = ?), 1 << 62) ORDER BY seq DESC LIMIT ?",
                (before, limit),
            ).fetchall()
            return [msgspec.json.decode(row[0], type=RaceSummary) for row in rows]

        return await self._read(read)

    async def series(self, series: str) -> list[RaceSummary]:
        """The races of a series that are over, in order."""

        def read(db: sqlite3.Connection) -> list[RaceSummary]:
            rows = db.execute(
                "SELECT summary FROM races WHERE json_extract(meta, '$.series') = ? AND summary IS NOT NULL"
                " ORDER BY seq",
                (series,),
            ).fetchall()
            return [msgspec.json.decode(row[0], type=RaceSummary) for row in rows]

        return await self._read(read)

    def check(self) -> None:
        """For reading only: that the file is a database of ours.

        Raises:
            SettingsError: it is not.
        """
        try:
            with closing(sqlite3.connect(f"{self._path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
                _refuse_newer(connection, self._path)
                connection.execute("SELECT id, meta, summary FROM races LIMIT 1")
        except sqlite3.Error as error:
            reason = f"{self._path.name} is no database of Specrace ({error})"
            raise SettingsError("SPECRACE_DATABASE", reason, "Give the file that the app writes") from None

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def in_thread() -> T:
            with closing(self._connect()) as connection:
                return work(connection)

        return await anyio.to_thread.run_sync(in_thread)

    # --- the thread -------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=5)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _write(self) -> None:
        pause = threading.Event()
        ended = False
        undone: list[_Work | _Kept] = []
        with closing(self._connect()) as connection:
            while not ended:
                batch = [self._work.get()]
                while not self._work.empty():
                    batch.append(self._work.get())
                ended = None in batch
                undone += [work for work in batch if work is not None and not isinstance(work, threading.Event)]
                undone = self._write_batch(connection, undone)
                for waiter in batch:
                    if isinstance(waiter, threading.Event):
                        waiter.set()
                if not ended:
                    pause.wait(WRITE_EVERY_S)

    def _write_batch(self, connection: sqlite3.Connection, batch: list[_Work | _Kept]) -> list[_Work | _Kept]:
        """Write ``batch`` in one transaction; returns what has to be tried again with the next one. A full disk must
        not end the show: races go on in memory, /readyz says what is wrong, nothing is lost if it is righted soon."""
        try:
            with connection:
                _write_all(connection, batch)
        except sqlite3.OperationalError as error:
            self._note(str(error))
            return batch[-UNWRITTEN_LIMIT:]
        except (sqlite3.Error, ValueError) as error:
            if len(batch) == 1:
                # this one will never be written
                self._note(str(error))
                return []
            return [again for work in batch for again in self._write_batch(connection, [work])]
        self.broken = None
        return []

    def _note(self, error: str) -> None:
        if self.broken is None:
            _log.error("races cannot be written", error=error)
        self.broken = error


def _write_all(db: sqlite3.Connection, batch: list[_Work | _Kept]) -> None:
    events: dict[str, tuple[int, list[Event]]] = {}
    for work in batch:
        if isinstance(work, _Kept):
            events.setdefault(work.race_id, (work.event_id, []))[1].append(work.event)
            continue
        # what was queued first is written first
        _write_events(db, events)
        work(db)
    _write_events(db, events)


def _write_events(db: sqlite3.Connection, events: dict[str, tuple[int, list[Event]]]) -> None:
    for race_id, (first_id, batch) in events.items():
        # a race that was deleted while it ran takes no more events
        sql = "INSERT INTO events (race_id, first_id, batch) SELECT id, ?, ? FROM races WHERE id = ?"
        db.execute(sql, (first_id, msgspec.json.encode(batch).decode(), race_id))
    events.clear()


def _read_events(db: sqlite3.Connection, race_id: str) -> list[Event]:
    rows = db.execute("SELECT batch FROM events WHERE race_id = ? ORDER BY first_id", (race_id,)).fetchall()
    return [event for (batch,) in rows for event in _batches.decode(batch)]


def _run(db: sqlite3.Connection, sql: str, *values: object) -> None:
    db.execute(sql, values)


def _refuse_newer(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the file. Raises SettingsError when it is none that we know."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(_MIGRATIONS):
        raise SettingsError(
            "SPECRACE_DATABASE",
            f"{path.name} was written by a newer version of Specrace",
            "Update Specrace, or give another file",
        )
    return version


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    version = _refuse_newer(connection, path)
    for number, script in enumerate(_MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")


def _interrupt_unfinished(connection: sqlite3.Connection) -> None:
    """End races that a killed app left open, so that they are shown for what they are."""
    for race_id, meta_text in connection.execute("SELECT id, meta FROM races WHERE summary IS NULL").fetchall():
        try:
            events = _read_events(connection, race_id)
            meta = msgspec.json.decode(meta_text, type=RaceMeta)
        except msgspec.ValidationError as error:
            # written by another version: it stays as it is
            _log.error("a kept race cannot be read", race=race_id, error=str(error))
            continue
        board = fold(events)
        if not board.over:
            last = RaceFinished(t_ms=board.now_ms, status="interrupted")
            board.apply(last)
            _write_events(connection, {race_id: (len(events) + 1, [last])})
        body = msgspec.json.encode(summarize(meta, board)).decode()
        connection.execute("UPDATE races SET summary = ? WHERE id = ?", (body, race_id))
