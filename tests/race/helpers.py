"""Words for the tests of the domain: events of a race, a clock moved by hand, servers that do what a test says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from app.race import counters
from app.race.events import (
    Event,
    LaneChunk,
    LaneDrafts,
    LaneFailed,
    LaneFinished,
    LaneStarted,
    LaneUsage,
    RaceFinished,
    RaceStarted,
)
from app.race.hub import Hub, Limits
from app.race.run import Run
from app.race.scoreboard import Scoreboard
from app.race.speller import Speller
from app.race.store import Store
from app.race.summary import RaceMeta, RaceSummary, StoredRace, fold
from app.race.types import (
    Candidate,
    Chunk,
    LaneError,
    LaneIdentity,
    LaneName,
    RaceSpec,
    Sampling,
    Schedule,
    SpecRecord,
    Usage,
)

MS = 1_000_000


def exactly(value: float) -> Any:
    """Equal to the last digit that a double of this size can hold."""
    return pytest.approx(value, rel=1e-14, abs=0)


# ---------------------------------------------------------------------------------------- a race in words
def spec(
    prompt: str = "Count.", *, temperature: float = 0.0, schedule: Schedule = "together", workload: str | None = None
) -> RaceSpec:
    sampling = Sampling(temperature=temperature, top_p=1.0, seed=0, max_tokens=64, ignore_eos=False)
    return RaceSpec(workload=workload, prompt=prompt, system=None, sampling=sampling, schedule=schedule)


def meta(race_id: str = "race1", **rest: Any) -> RaceMeta:
    return RaceMeta(id=race_id, spec=rest.pop("spec", spec()), created_at="2026-11-30T02:22:11.000Z", **rest)


def started(t_ms: float = 0.0, **rest: Any) -> RaceStarted:
    return RaceStarted(t_ms=t_ms, queue_ms=0.0, in_flight=1, **rest)


def sent(lane: LaneName, t_ms: float = 0.0, **rest: Any) -> LaneStarted:
    return LaneStarted(t_ms=t_ms, lane=lane, model="m", **rest)


def chunk(lane: LaneName, t_ms: float, tokens: int | None = 1, **rest: Any) -> LaneChunk:
    ids = None if tokens is None else tuple(range(tokens))
    return LaneChunk(t_ms=t_ms, lane=lane, **{"text": "x", "tokens": tokens, "token_ids": ids} | rest)


def usage(lane: LaneName, t_ms: float, n: int | None, **rest: Any) -> LaneUsage:
    return LaneUsage(t_ms=t_ms, lane=lane, completion_tokens=n, **rest)


def drafts(lane: LaneName, t_ms: float, record: SpecRecord) -> LaneDrafts:
    return LaneDrafts(t_ms=t_ms, lane=lane, record=record)


def ended(lane: LaneName, t_ms: float, status: Any = "finished", **rest: Any) -> Event:
    if status in ("finished", "stopped"):
        return LaneFinished(t_ms=t_ms, lane=lane, status=status, **rest)
    error = LaneError(kind="cut_off", message="It broke. Do this.")
    return LaneFailed(t_ms=t_ms, lane=lane, status=status, error=error)


def over(t_ms: float, status: Any = "finished") -> RaceFinished:
    return RaceFinished(t_ms=t_ms, status=status)


def streamed(
    lane: LaneName,
    *,
    at_ms: float = 0.0,
    first_ms: float,
    every_ms: float,
    chunks: int,
    per_chunk: int | None = 1,
    status: Any = "finished",
) -> list[Event]:
    """A whole lane: sent at ``at_ms``, its first chunk at ``first_ms``, one every ``every_ms`` from there on."""
    times = [first_ms + every_ms * i for i in range(chunks)]
    return [sent(lane, at_ms), *(chunk(lane, t, per_chunk) for t in times), ended(lane, times[-1] + 1, status)]


def board(*events: Event | Iterable[Event]) -> Scoreboard:
    flat: list[Event] = []
    for event in events:
        flat += event if isinstance(event, (list, tuple)) else [event]  # type: ignore[list-item]
    return fold(sorted(flat, key=lambda event: event.t_ms))


# ---------------------------------------------------------------------------------------- time and servers
class Clock:
    """A monotonic clock that only a test moves."""

    def __init__(self, ns: int = 5_000 * MS) -> None:
        self.ns = ns

    def __call__(self) -> int:
        return self.ns

    def move_ms(self, ms: float) -> None:
        self.ns += round(ms * MS)


Step = Chunk | float | BaseException | Callable[[], Any] | anyio.Event


class FakeRunner:
    """A lane's server: sleeps for a number, waits for an event, raises an exception, hands over a chunk.

    ``readings`` are its /metrics, one a scrape (the last stays): text, None, an exception, or seconds to hang.
    """

    def __init__(
        self,
        *steps: Step,
        readings: list[Any] | None = None,
        speculating: bool | None = None,
        method: str | None = None,
        k: int | None = None,
        model: str | BaseException = "m",
        clock: Callable[[], int] | None = None,
    ) -> None:
        from app.race.clock import monotonic_ns

        self.steps = steps
        self.readings = readings or [None]
        self.identity = LaneIdentity(model="m", method=method, num_speculative_tokens=k)
        self.speculating = speculating
        self.reports_per_request = False
        self.takes_salt = True
        self.speller: Speller | None = None
        self.clock = clock or monotonic_ns
        self.runs = 0
        self.scrapes = 0
        self.left = 0
        self.prompts: list[str] = []
        self.rated: list[tuple[list[int], tuple[int, ...], float]] = []
        self.rating: Any = None
        """What the server says of two tokens: candidates, None, an exception, or seconds to take."""
        self._model = model

    async def model(self) -> str:
        if isinstance(self._model, BaseException):
            raise self._model
        return self._model

    async def run(self, spec: RaceSpec, _: str, sent: Callable[[int, bool], None], receive: Any) -> None:
        self.prompts.append(spec.prompt)
        sent(self.clock(), False)
        try:
            await anyio.lowlevel.checkpoint()  # as any network does
            self.runs += 1
            for step in self.steps:
                await self._do(step, receive)
        finally:
            self.left += 1

    async def _do(self, step: Step, receive: Callable[[Chunk], None]) -> None:
        if isinstance(step, Chunk):
            receive(Chunk(**{f: getattr(step, f) for f in Chunk.__struct_fields__} | {"at_ns": self.clock()}))
        elif isinstance(step, BaseException):
            raise step
        elif isinstance(step, anyio.Event):
            await step.wait()
        elif callable(step):
            found = step()
            if isinstance(found, Awaitable):
                await found
        else:
            await anyio.sleep(step)

    async def rate(self, context: Any, tokens: Any, timeout_s: float) -> tuple[Candidate, ...] | None:
        self.rated.append((list(context), tuple(tokens), timeout_s))
        await anyio.lowlevel.checkpoint()
        if isinstance(self.rating, BaseException):
            raise self.rating
        if isinstance(self.rating, (int, float)):
            await anyio.sleep(self.rating)
            return None
        return self.rating

    async def counters(self, timeout_s: float) -> counters.Counters | None:
        found = self.readings[min(self.scrapes, len(self.readings) - 1)]
        self.scrapes += 1
        await anyio.lowlevel.checkpoint()
        if isinstance(found, BaseException):
            raise found
        if isinstance(found, (int, float)):
            with anyio.move_on_after(min(timeout_s, found)):
                await anyio.sleep_forever()
            return None
        return None if found is None else counters.parse(found)


def tok(text: str = "x", n: int = 1, **rest: Any) -> Chunk:
    return Chunk(at_ns=0, **{"text": text, "tokens": n, "token_ids": tuple(range(n))} | rest)


def total(n: int, record: SpecRecord | None = None, **rest: Any) -> Chunk:
    return Chunk(at_ns=0, usage=Usage(completion_tokens=n, **rest), spec=record)


FIN = Chunk(at_ns=0, tokens=0, token_ids=(), finish_reason="stop")


class Memory:
    """A keeper that keeps in memory."""

    def __init__(self) -> None:
        self.metas: dict[str, RaceMeta] = {}
        self.events: dict[str, list[tuple[int, Event]]] = {}
        self.summaries: dict[str, RaceSummary] = {}

    def begin(self, meta: RaceMeta) -> None:
        self.metas[meta.id] = meta

    def keep(self, race_id: str, event_id: int, event: Event) -> None:
        self.events.setdefault(race_id, []).append((event_id, event))

    def finish(self, summary: RaceSummary) -> None:
        self.summaries[summary.id] = summary


def hub_of(baseline: FakeRunner, speculative: FakeRunner, keeper: Any = None, clock: Any = None, **limits: Any) -> Hub:
    runners: dict[LaneName, FakeRunner] = {"baseline": baseline, "speculative": speculative}
    rest = {} if clock is None else {"clock": clock}
    return Hub(runners, keeper or Memory(), Limits(**limits), **rest)


async def end_of(run: Run, within_s: float = 5.0) -> Run:
    with anyio.fail_after(within_s):
        while await run.log.beyond(run.log.head):
            pass
    return run


async def until(found: Callable[[], Any], within_s: float = 5.0) -> None:
    with anyio.fail_after(within_s):
        while not found():  # noqa: ASYNC110 - what is waited for sets no event
            await anyio.sleep(0.005)


def store_at(folder: Path) -> Store:
    store = Store(folder / "races.sqlite3")
    store.open()
    return store


def stored(events: list[Event], **rest: Any) -> StoredRace:
    return StoredRace(meta(**rest), events)
