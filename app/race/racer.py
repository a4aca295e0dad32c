"""One lane of one race: chunks become events, and every ending, whatever it is, becomes the lane's last event."""

from __future__ import annotations

from typing import Protocol

import anyio
import structlog
from msgspec import structs

from app.race import counters
from app.race.events import Event, LaneChunk, LaneDrafts, LaneFailed, LaneFinished, LaneStarted, LaneUsage
from app.race.failures import UpstreamError
from app.race.types import (
    Chunk,
    ErrorKind,
    LaneIdentity,
    LaneName,
    LaneNumbers,
    LaneStatus,
    RaceSpec,
    SpecRecord,
    Usage,
)
from app.race.upstream import Receive, Sent

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


class Host(Protocol):
    """The race around the lane (app.race.race.Race)."""

    def append(self, event: Event) -> None:
        """Take in an event of the lane."""
        ...

    def numbers(self, name: LaneName, ending: LaneStatus | None = None) -> LaneNumbers:
        """Figures of a lane now."""
        ...

    def at_ms(self, at_ns: int | None = None) -> float:
        """Race time of a stamp (default: now)."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether somebody pressed Stop."""
        ...


class Racer:
    """Runs one lane to its end. Knows nothing of the other one."""

    def __init__(self, race: Host, name: LaneName, runner: Runner) -> None:
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
