"""One race: two lanes that know nothing of each other, every happening appended to one sink.

A lane's failure is an event of that lane and never stops the other. Cancelling the race (shutdown) cancels both
lanes, and each upstream closes its connection, so that the servers stop generating (see ARCHITECTURE.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import anyio
import structlog
from msgspec import structs

from app.race import counters
from app.race.clock import MonotonicNs, monotonic_ns, ms_between
from app.race.events import (
    ComparisonRead,
    Event,
    LaneChunk,
    LaneDrafts,
    LaneFailed,
    LaneFigures,
    LaneFinished,
    LaneStarted,
    LaneUsage,
    RaceFinished,
    RaceStarted,
)
from app.race.failures import UpstreamError
from app.race.types import (
    LANES,
    Caveat,
    Chunk,
    Comparison,
    ErrorKind,
    LaneIdentity,
    LaneName,
    LaneNumbers,
    LaneStatus,
    RaceSpec,
    RaceStatus,
    SpecRecord,
    Usage,
)
from app.race.upstream import Receive, Sent

READINGS_EVERY_S = 0.2
COUNTERS_BEFORE_S = 0.4
COUNTERS_SETTLE_S = 2.0

_log = structlog.get_logger()
_STATUS_OF: dict[ErrorKind, LaneStatus] = {"cut_off": "cut_off", "aborted": "aborted"}


class Runner(Protocol):
    """A lane's server, as the race needs it (app.race.lane.LaneServer; tests have their own)."""

    @property
    def identity(self) -> LaneIdentity:
        """Model, method and k as far as known."""
        ...

    @property
    def speculating(self) -> bool | None:
        """Whether the server speculates, None where it gives no way to know."""
        ...

    @property
    def reports_per_request(self) -> bool:
        """Whether the server is known to send a record of its drafts with each answer."""
        ...

    async def run(self, spec: RaceSpec, model: str, sent: Sent, receive: Receive) -> None:
        """See app.race.upstream.Upstream.run."""
        ...

    async def model(self) -> str:
        """Name of the model to ask for. Raises UpstreamError."""
        ...

    async def counters(self, timeout_s: float) -> counters.Counters | None:
        """One reading of /metrics, None when there is none to be had in that time."""
        ...


class Sink(Protocol):
    """Where events go, and where the scoreboard's readings come from (app.race.hub.Run)."""

    def append(self, event: Event) -> None:
        """Take in one event."""
        ...

    def numbers(self, lane: LaneName, now_ms: float, *, ending: LaneStatus | None = None) -> LaneNumbers:
        """Figures of a lane; ``ending``: as they will be once it has ended so."""
        ...

    def comparison(self, now_ms: float) -> Comparison:
        """The pair's figures."""
        ...


class Race:
    """Runs one race to its end. ``run`` returns the status that it also appended as the last event."""

    def __init__(
        self,
        spec: RaceSpec,
        runners: Mapping[LaneName, Runner],
        sink: Sink,
        *,
        epoch_ns: int,
        clock: MonotonicNs = monotonic_ns,
        order: tuple[LaneName, LaneName] = LANES,
    ) -> None:
        self._spec = spec
        self._lanes: dict[LaneName, _Lane] = {name: _Lane(self, name, runners[name]) for name in LANES}
        self._sink = sink
        self._epoch_ns = epoch_ns
        self._clock = clock
        self._order = order
        self._stopping = False

    def at_ms(self, at_ns: int | None = None) -> float:
        """Race time of a stamp (default: now)."""
        return ms_between(self._epoch_ns, self._clock() if at_ns is None else at_ns)

    async def run(self, *, queue_ms: float, in_flight: int, conditions: tuple[Caveat, ...] = ()) -> RaceStatus:
        """Race both lanes; "together" at once, "in_turn" one after the other."""
        self._sink.append(RaceStarted(t_ms=self.at_ms(), queue_ms=queue_ms, in_flight=in_flight, conditions=conditions))
        async with anyio.create_task_group() as ticking:
            ticking.start_soon(self._read_out)
            async with anyio.create_task_group() as before:
                for lane in self._lanes.values():
                    before.start_soon(lane.read_counters)
            await self._race()
            async with anyio.create_task_group() as after:
                for lane in self._lanes.values():
                    after.start_soon(lane.settle_counters)
            ticking.cancel_scope.cancel()
        status = self._status()
        self._read_comparison()
        self._sink.append(RaceFinished(t_ms=self.at_ms(), status=status))
        return status

    def stop(self) -> None:
        """Stop both lanes; their tokens stay. Does nothing to a lane that has ended."""
        self._stopping = True
        for lane in self._lanes.values():
            lane.scope.cancel()

    async def _race(self) -> None:
        if self._spec.schedule == "in_turn":
            for name in self._order:
                await self._lanes[name].run(self._spec)
            return
        async with anyio.create_task_group() as racing:
            for name in self._order:
                racing.start_soon(self._lanes[name].run, self._spec)

    def _status(self) -> RaceStatus:
        ends = [lane.status for lane in self._lanes.values()]
        if ends.count("finished") == 2:
            return "finished"
        if ends.count("finished") == 1:
            return "partial"
        return "stopped" if "stopped" in ends else "failed"

    async def _read_out(self) -> None:
        """Append readings of the scoreboard a few times a second, for scripts that fold nothing themselves."""
        seen: dict[LaneName, int] = {}
        while True:
            await anyio.sleep(READINGS_EVERY_S)
            moved = False
            for name, lane in self._lanes.items():
                if lane.status == "streaming" and lane.received != seen.get(name, 0):
                    seen[name], moved = lane.received, True
                    self._read_figures(name)
            if moved:
                self._read_comparison()

    def _read_figures(self, name: LaneName) -> None:
        now = self.at_ms()
        self._sink.append(LaneFigures(t_ms=now, lane=name, **structs.asdict(self._sink.numbers(name, now))))

    def _read_comparison(self) -> None:
        now = self.at_ms()
        self._sink.append(ComparisonRead(t_ms=now, **structs.asdict(self._sink.comparison(now))))

    def append(self, event: Event) -> None:
        """Hand an event of a lane to the sink."""
        self._sink.append(event)

    def numbers(self, name: LaneName, ending: LaneStatus | None = None) -> LaneNumbers:
        """Figures of a lane now."""
        return self._sink.numbers(name, self.at_ms(), ending=ending)

    @property
    def stopping(self) -> bool:
        """Whether somebody pressed Stop."""
        return self._stopping


class _Lane:
    """One lane of one race: turns chunks into events and an end, whatever it is, into the last event."""

    def __init__(self, race: Race, name: LaneName, runner: Runner) -> None:
        self.name: LaneName = name
        self.status: LaneStatus = "waiting"
        self.received = 0
        self.scope = anyio.CancelScope()
        self._race = race
        self._runner = runner
        self._usage: Usage | None = None
        self._record: SpecRecord | None = None
        self._finish_reason: str | None = None
        self._before: counters.Counters | None = None

    async def run(self, spec: RaceSpec) -> None:
        """Run to the end and append it. Never raises but for cancellation from outside."""
        failure: UpstreamError | None = None
        with self.scope:
            try:
                model = await self._runner.model()
                await self._runner.run(spec, model, lambda at, again: self._sent(at, again, model), self._receive)
            except UpstreamError as error:
                failure = error
            except Exception as error:  # noqa: BLE001  # a fault of ours must not take the other lane with it, nor hide
                _log.exception("lane failed unexpectedly", lane=self.name)
                failure = UpstreamError("stream_error", f"Specrace could not go on ({type(error).__name__})")
        self._append_usage()
        if self._finish_reason == "abort" and failure is None:
            failure = UpstreamError("aborted", "The server aborted the answer")
        if self._finish_reason == "error" and failure is None:
            failure = UpstreamError("stream_error", "The server ended the answer with an error")
        stopped = failure is None and self.scope.cancelled_caught
        self._end("stopped" if stopped else "finished", failure)

    def _sent(self, at_ns: int, again: bool, model: str) -> None:
        identity = self._runner.identity
        self.status = "streaming"
        self._race.append(
            LaneStarted(
                t_ms=self._race.at_ms(at_ns),
                lane=self.name,
                model=model,
                method=identity.method,
                num_speculative_tokens=identity.num_speculative_tokens,
                speculating=self._runner.speculating,
                retried=again,
            )
        )

    def _receive(self, chunk: Chunk) -> None:
        at_ms = self._race.at_ms(chunk.at_ns)
        self._finish_reason = chunk.finish_reason or self._finish_reason
        self._record = chunk.spec or self._record
        brings = chunk.text or chunk.reasoning or chunk.tool_call or chunk.token_ids
        if brings and self._usage is not None:
            # tokens after a total: it was none
            self._usage = structs.replace(self._usage, completion_tokens=None)
        self._usage = chunk.usage or self._usage
        if not brings:
            return
        self.received += 1
        # a delta with both is two events; the tokens are counted with the reasoning, which comes first
        if chunk.reasoning:
            self._append_chunk(at_ms, chunk, chunk.reasoning, reasoning=True)
        if chunk.text or not chunk.reasoning:
            rest = (
                structs.replace(chunk, tokens=0, token_ids=())
                if chunk.reasoning and chunk.tokens is not None
                else chunk
            )
            self._append_chunk(at_ms, rest, chunk.text, reasoning=False)

    def _append_chunk(self, at_ms: float, chunk: Chunk, text: str, *, reasoning: bool) -> None:
        self._race.append(
            LaneChunk(
                t_ms=at_ms,
                lane=self.name,
                text=text,
                tokens=chunk.tokens,
                reasoning=reasoning,
                tokens_exact=chunk.tokens_exact,
                token_ids=chunk.token_ids,
                tool_call=chunk.tool_call,
            )
        )

    def _append_usage(self) -> None:
        now = self._race.at_ms()
        if self._usage is not None:
            self._race.append(LaneUsage(t_ms=now, lane=self.name, **structs.asdict(self._usage)))
        if self._record is not None:
            self._race.append(LaneDrafts(t_ms=now, lane=self.name, record=self._record))

    def _end(self, status: LaneStatus, failure: UpstreamError | None) -> None:
        if failure is not None:
            status = _STATUS_OF.get(failure.error.kind, "failed")
        self.status = status
        numbers = structs.asdict(self._race.numbers(self.name, status))
        now = self._race.at_ms()
        if failure is not None:
            self._race.append(LaneFailed(t_ms=now, lane=self.name, error=failure.error, **numbers))
        else:
            self._race.append(LaneFinished(t_ms=now, lane=self.name, finish_reason=self._finish_reason, **numbers))

    # --- counters: only for servers that send no per-request record -------------------------------------

    async def read_counters(self) -> None:
        """Read /metrics before the request goes out. A server that answers slowly is not waited for."""
        if not self._runner.reports_per_request and self._runner.speculating is not False:
            self._before = await self._read_counters(COUNTERS_BEFORE_S)

    async def _read_counters(self, timeout_s: float) -> counters.Counters | None:
        try:
            return await self._runner.counters(timeout_s)
        except Exception as error:  # noqa: BLE001  # a figure may be missing, a race may not
            _log.exception("counters failed unexpectedly", lane=self.name, error=type(error).__name__)
            return None

    async def settle_counters(self) -> None:
        """After the end, wait (at most two seconds) for the counters to catch up, and append their growth. Counters
        that did not catch up in time say nothing."""
        if self._record is not None or self._before is None or self.received == 0 or self._race.stopping:
            return
        tokens = self._race.numbers(self.name).completion_tokens
        seen: counters.Growth | None = None
        with anyio.move_on_after(COUNTERS_SETTLE_S):
            while True:
                after = await self._read_counters(COUNTERS_SETTLE_S)
                grown = counters.growth(self._before, after) if after else None
                if after is not None and grown is None:
                    return
                previous, seen = seen, grown or seen
                if grown is not None and (not grown.certain or counters.settled(grown, previous, tokens)):
                    record = counters.record(grown, tokens, self._runner.identity.num_speculative_tokens)
                    self._race.append(LaneDrafts(t_ms=self._race.at_ms(), lane=self.name, record=record))
                    return
                await anyio.sleep(0.1)
