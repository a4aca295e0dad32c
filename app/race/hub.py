"""Live runs: admit, queue, cap, retire. One pair of servers, ``races_at_once`` races on it, the others wait.

A race outlives its viewers: somebody who reloads, or whose phone slept, finds it again. But one started from the page
and left by everybody for ``abandon_s`` is stopped, so that nobody's GPU works for an empty room.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import anyio
import structlog
from msgspec import Struct, structs

from app.errors import Busy
from app.race.clock import MonotonicNs, monotonic_ns, ms_between
from app.race.events import RaceFinished, RaceQueued
from app.race.fairness import known_before, with_own_salt
from app.race.race import Race
from app.race.racer import Runner
from app.race.replay import begins_at_ms, play
from app.race.run import Keeper, Run
from app.race.summary import RaceMeta, StoredRace
from app.race.types import LaneName, RaceSpec, RaceStatus, Setting
from app.race.warm_up import WARM_UP, warm_up

_log = structlog.get_logger()


class Limits(Struct, frozen=True, kw_only=True):
    """How much the hub takes on. ``abandon_s`` and ``linger_s`` in seconds."""

    races_at_once: int = 1
    queue_limit: int = 50
    abandon_s: float = 12.0
    linger_s: float = 5.0


Known = Callable[[], Setting]
"""What is known of the pair before the first token (warm, shared device)."""


def new_id() -> str:
    """12 characters that cannot be guessed, without look-alikes: easy to read out and to copy."""
    return "".join(secrets.choice("abcdefghijkmnpqrstuvwxyz23456789") for _ in range(12))


class Hub:
    """All runs in memory, and the queue in front of the pair."""

    def __init__(
        self,
        runners: Mapping[LaneName, Runner],
        keeper: Keeper,
        limits: Limits,
        known: Known = Setting,
        version: Callable[[], str | None] = lambda: None,
        clock: MonotonicNs = monotonic_ns,
    ) -> None:
        self._runners = runners
        self._keeper = keeper
        self._limits = limits
        self._known = known
        self._version = version
        self._clock = clock
        self._runs: dict[str, Run] = {}
        self._waiting: list[tuple[Run, asyncio.Future[None]]] = []
        self._racing: list[Run] = []
        self._tickets: dict[str, str] = {}
        self._warming: Run | None = None
        self._held = False
        self.closing = False
        self.ended: Counter[RaceStatus] = Counter()
        """How many races ended how, since the start of the app."""

    @property
    def racing(self) -> bool:
        """Whether a race is on the pair now: nobody else should ask the servers for anything meanwhile."""
        return bool(self._racing)

    def hold(self) -> bool:
        """Keep the pair free of races until ``let_go`` (for a check); races asked for meanwhile wait. False, and
        nothing held, while a race is on or waits."""
        if self._held or self._racing or self._waiting or self.closing:
            return False
        self._held = True
        return True

    def let_go(self) -> None:
        """Give the pair back to the races."""
        self._held = False
        self._admit()

    @property
    def warming(self) -> bool:
        """Whether a warm-up waits or runs."""
        return self._warming is not None and not self._warming.ended

    @property
    def _living(self) -> tuple[Run, ...]:
        """Every run with a task: those in memory, and the warm-up."""
        return (*self._runs.values(), *(() if self._warming is None else (self._warming,)))

    @property
    def waiting(self) -> int:
        """Races in the queue."""
        return len(self._waiting)

    @property
    def viewers(self) -> int:
        """Open streams over all runs."""
        return sum(run.viewers for run in self._runs.values())

    def get(self, race_id: str) -> Run | None:
        """The run in memory with this id."""
        return self._runs.get(race_id)

    def start(
        self,
        spec: RaceSpec,
        *,
        owner: str | None = None,
        ticket: str | None = None,
        place: tuple[str, int, int] | None = None,
        seen_ns: int | None = None,
    ) -> Run:
        """Admit a race. ``owner`` is the visitor of a page (None: a script, whose race needs no viewers); a visitor's
        new race replaces the one that the same visitor left running. A ``ticket`` used twice (double click, form
        sent again) gives the same race twice. ``place`` says which race of how many in which series it is, ``seen_ns``
        when that series was last watched.

        Raises:
            Busy: the queue is full, or the app is about to stop.
        """
        again = self._runs.get(self._tickets.get(ticket, "")) if ticket else None
        if again is not None:
            return again
        if self.closing:
            raise Busy("race", "the app is restarting", "Try again in a few seconds", retry_after_s=5)
        own = [
            run
            for run in self._runs.values()
            if owner is not None and run.owner == owner and run.is_race and not run.log.closed
        ]
        self._refuse_if_full(own)
        for old in own:
            self.stop(old.meta.id)
        created_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        meta = RaceMeta(id=new_id(), spec=with_own_salt(spec), created_at=created_at, vllm=self._version())
        if place is not None:
            series, number, races = place
            meta = structs.replace(meta, series=series, series_number=number, series_races=races)
        run = self._add(Run(meta, self._keeper, clock=self._clock), owner)
        run.seen_ns = run.seen_ns if seen_ns is None else seen_ns
        if ticket:
            self._tickets[ticket] = meta.id
        self._keeper.begin(meta)
        turn = self._take_place(run)
        run.task = asyncio.create_task(self._live(run, turn), name=f"race {meta.id}")
        run.task.add_done_callback(lambda _: self._end(run, self._cut_short))
        return run

    def warm_up(self) -> Run:
        """A few tokens from each server, kept nowhere and counted nowhere, in its own place in the queue: never beside
        a race. One that waits or runs already is given again.

        Raises:
            Busy: the queue is full, or the app is about to stop.
        """
        if self._warming is not None and self.warming:
            return self._warming
        if self.closing:
            raise Busy("warm-up", "the app is restarting", "Try again in a few seconds", retry_after_s=5)
        self._refuse_if_full([])
        run = Run(RaceMeta(id=new_id(), spec=WARM_UP, created_at=""), None, clock=self._clock)
        self._warming = run
        run.task = asyncio.create_task(self._warm(run, self._take_place(run)), name="warm-up")
        run.task.add_done_callback(lambda _: self._end(run, self._cut_short))
        return run

    async def _warm(self, run: Run, turn: asyncio.Future[None] | None) -> None:
        status: RaceStatus = "failed"
        try:
            if turn is not None:
                await turn
            async with anyio.create_task_group() as group:
                for lane, runner in self._runners.items():
                    group.start_soon(warm_up, lane, runner)
            status = "finished"
        except asyncio.CancelledError:
            status = self._cut_short
        except Exception:  # noqa: BLE001  # a fault of ours must neither hide nor keep the place for ever
            _log.exception("warm-up failed unexpectedly")
        finally:
            self._end(run, status)

    def _free_for(self, run: Run | None) -> bool:
        """Whether a run may begin now. A warm-up has the pair to itself; ``run`` None asks for any race."""
        if self._held:
            return False
        if run is not None and run is self._warming:
            return not self._racing
        return len(self._racing) < self._limits.races_at_once and self._warming not in self._racing

    def _refuse_if_full(self, own: list[Run]) -> None:
        """Raises Busy when a new race would have to wait and may not; it replaces ``own``, the visitor's races."""
        others = [run for run, _ in self._waiting if run not in own]
        free = self._free_for(None)
        takes_over = any(run in own for run in self._racing)
        if len(others) < self._limits.queue_limit or (not others and (free or takes_over)):
            return
        reason = f"{len(others)} races are waiting already" if others else "a race is running, and nobody may wait"
        raise Busy("race", reason, "Try again later", retry_after_s=30)

    def replay(self, race: StoredRace, *, owner: str | None = None) -> Run:
        """Play a kept race or a recording into a fresh run at its recorded pace. It takes no place on the pair and is
        not kept again. A visitor's new replay ends the one before."""
        for old in list(self._runs.values()):
            if owner is not None and old.owner == owner and old.meta.origin is not None:
                self.stop(old.meta.id)
        meta = structs.replace(race.meta, id=new_id(), origin=race.meta.id)
        run = self._add(Run(meta, None, clock=self._clock), owner)
        run.epoch_ns -= round(begins_at_ms(race.events) * 1e6)
        run.task = asyncio.create_task(play(race.events, run.append, run.now_ms), name=f"replay {meta.id}")
        run.task.add_done_callback(lambda _: self._end(run, self._cut_short))
        return run

    def _add(self, run: Run, owner: str | None) -> Run:
        self._sweep()
        run.owner = owner
        self._runs[run.meta.id] = run
        return run

    def stop(self, race_id: str) -> bool:
        """Stop both lanes, or leave the queue, or end a replay. False when there is no such run in memory."""
        run = self._runs.get(race_id)
        if run is None:
            return False
        if run.race is not None:
            run.race.stop()
        elif run.task is not None:
            run.task.cancel()
        return True

    async def forget(self, race_id: str) -> None:
        """End a run, if it still runs, and drop it from memory."""
        run = self._runs.get(race_id)
        if run is None:
            return
        self.stop(race_id)
        if run.task is not None:
            await asyncio.wait([run.task])
        self._runs.pop(race_id, None)

    def leave(self) -> None:
        """End every run as interrupted; viewers get that as their last frame. Takes no new ones."""
        self.closing = True
        for run in self._living:
            if run.task is not None:
                run.task.cancel()

    async def close(self) -> None:
        """``leave``, and wait until every run has ended."""
        self.leave()
        tasks = [run.task for run in self._living if run.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def watch(self) -> None:
        """Stop what was abandoned and forget what is over; runs for the life of the app."""
        while True:
            await anyio.sleep(1.0)
            for run in list(self._runs.values()):
                away_s = ms_between(run.last_seen_ns(), self._clock()) / 1000
                abandoned = run.owner is not None and not run.viewers and away_s > self._limits.abandon_s
                if abandoned and not run.log.closed:
                    self.stop(run.meta.id)
            self._sweep()

    def _sweep(self) -> None:
        """Forget runs that are over and watched by nobody; the store has them."""
        for race_id, run in list(self._runs.items()):
            away_s = ms_between(run.left_ns, self._clock()) / 1000
            if run.log.closed and run.viewers == 0 and away_s > self._limits.linger_s:
                del self._runs[race_id]
        if len(self._tickets) > 10_000:
            self._tickets = {ticket: race for ticket, race in self._tickets.items() if race in self._runs}

    async def _live(self, run: Run, turn: asyncio.Future[None] | None) -> None:
        """One race from queue to end."""
        status: RaceStatus = "failed"
        try:
            if turn is not None:
                await turn
            run.race = Race(run.meta.spec, self._runners, run, epoch_ns=run.epoch_ns, clock=self._clock)
            setting = self._known()
            caveats = known_before(setting, run.meta.spec.schedule)
            status = await run.race.run(
                queue_ms=run.now_ms(), in_flight=len(self._racing), conditions=caveats, setting=setting
            )
        except asyncio.CancelledError:
            status = self._cut_short
        except Exception:  # noqa: BLE001  # a fault of ours must neither hide nor keep the place for ever
            _log.exception("race failed unexpectedly", race=run.meta.id)
        finally:
            self._end(run, status)

    @property
    def _cut_short(self) -> RaceStatus:
        return "interrupted" if self.closing else "stopped"

    def _end(self, run: Run, status: RaceStatus) -> None:
        """However a run ends, RaceFinished is its last event and its place is free. Once; also for a task that was
        cancelled before its first step."""
        if run.ended:
            return
        run.ended = True
        run.left_ns = self._clock()  # it stays in memory until the store has surely written it
        run.append(RaceFinished(t_ms=run.now_ms(), status=status))
        if run.is_race:
            self.ended[run.board.status] += 1
        if run.is_race or run is self._warming:
            self._leave(run)

    def _take_place(self, run: Run) -> asyncio.Future[None] | None:
        """A place on the pair now, or the future that is set when it is this run's turn."""
        if self._free_for(run) and not self._waiting:
            self._racing.append(run)
            return None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((run, turn))
        run.append(RaceQueued(t_ms=run.now_ms(), position=len(self._waiting)))
        return turn

    def _leave(self, run: Run) -> None:
        """Give the place back and let the next in; tell the others where they stand now."""
        self._waiting = [(other, turn) for other, turn in self._waiting if other is not run]
        if run in self._racing:
            self._racing.remove(run)
        self._admit()

    def _admit(self) -> None:
        """Let in whoever waits and has a place now."""
        while self._waiting and self._free_for(self._waiting[0][0]) and not self.closing:
            following, turn = self._waiting.pop(0)
            if not turn.done():
                self._racing.append(following)
                turn.set_result(None)
        for position, (other, _) in enumerate(self._waiting, start=1):
            if other.board.position != position:
                other.append(RaceQueued(t_ms=other.now_ms(), position=position))
