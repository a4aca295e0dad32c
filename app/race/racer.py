"""One lane of one race: chunks become events, and every ending, whatever it is, becomes the lane's last event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import anyio
import structlog
from msgspec import structs

from app.race import counters, growth
from app.race.events import Event, LaneChunk, LaneDrafts, LaneFailed, LaneFinished, LaneStarted, LaneUsage
from app.race.failures import UpstreamError
from app.race.speller import LaneSpelling, Speller
from app.race.types import (
    Candidate,
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

    @property
    def takes_salt(self) -> bool:
        """Whether the server is not known to refuse a cache salt."""
        ...

    async def run(self, spec: RaceSpec, model: str, sent: Sent, receive: Receive) -> None:
        """See app.race.upstream.Upstream.run."""
        ...

    async def model(self) -> str:
        """Name of the model to ask for. Raises UpstreamError."""
        ...

    async def rate(
        self, context: Sequence[int], tokens: Sequence[int], timeout_s: float
    ) -> tuple[Candidate, ...] | None:
        """``tokens`` with their log-probabilities after ``context`` (ids), None when there is none to be had."""
        ...

    @property
    def speller(self) -> Speller | None:
        """Who knows the texts of the server's tokens, None where nobody does."""
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
        self._prompt_ids: tuple[int, ...] | None = None
        self._ids: list[int] = []
        self._load: counters.Counters | None = None
        self._spelling: LaneSpelling | None = None

    async def run(self, spec: RaceSpec) -> None:
        """Run to the end and append it. Never raises but for cancellation from outside."""
        failure: UpstreamError | None = None
        salted = spec.cache_salt is not None
        with self.scope:
            try:
                model = await self._runner.model()
                await self._runner.run(
                    spec, model, lambda at, again: self._sent(at, again, model, salted), self._receive
                )
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

    def _sent(self, at_ns: int, again: bool, model: str, salted: bool) -> None:
        identity = self._runner.identity
        self.status = "streaming"
        speller = self._runner.speller
        if self.name == "speculative" and self._runner.speculating is not False and speller is not None:
            self._spelling = LaneSpelling(self.name, speller)
        self._race.append(
            LaneStarted(
                t_ms=self._race.at_ms(at_ns),
                lane=self.name,
                model=model,
                method=identity.method,
                num_speculative_tokens=identity.num_speculative_tokens,
                speculating=self._runner.speculating,
                retried=again,
                requests_running=None if self._load is None else self._load.running,
                requests_waiting=None if self._load is None else self._load.waiting,
                salted=salted and self._runner.takes_salt,
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
        if self._spelling is not None and (told := self._spelling.hear(chunk, at_ms)):
            self._race.append(told)
        self._prompt_ids = chunk.prompt_token_ids or self._prompt_ids
        self._ids.extend(chunk.token_ids or ())
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

    # --- where greedy answers part: how close were the two tokens? --------------------------------------

    def token(self, index: int) -> int | None:
        """Id of token ``index`` of the answer; None when the answer has no such token."""
        return self._ids[index] if index < len(self._ids) else None

    async def rate(self, index: int, tokens: tuple[int, int], timeout_s: float) -> tuple[Candidate, ...] | None:
        """What this lane's server thinks of ``tokens`` as token ``index`` of its own answer; None when that cannot be
        had in time, or the server did not say how it read the prompt."""
        if self._prompt_ids is None:
            return None
        try:
            return await self._runner.rate([*self._prompt_ids, *self._ids[:index]], tokens, timeout_s)
        except Exception as error:  # noqa: BLE001  # a remark may be missing, a race may not
            _log.exception("rating failed unexpectedly", lane=self.name, error=type(error).__name__)
            return None

    # --- texts of single tokens, so that the drafted ones can be marked in a text ----------------------------

    async def settle_vocabulary(self) -> None:
        """After both lanes have ended, ask the server for the texts that are still missing (two seconds at most)."""
        if self._spelling is None or self.received == 0 or self._race.stopping:
            return
        try:
            model = self._runner.identity.model or await self._runner.model()
            if told := await self._spelling.settle(model, self._race.at_ms):
                self._race.append(told)
        except Exception as error:  # noqa: BLE001  # marks in a text may stay coarse, a race may not be lost
            _log.exception("spelling failed unexpectedly", lane=self.name, error=type(error).__name__)

    # --- /metrics: what the server has in hand, and its counters where it sends no per-request record

    async def read_counters(self, *, alone: bool) -> None:
        """Read /metrics before the request goes out (LaneStarted holds what it says of speculation). A server that
        answers slowly is not waited for, and one with another race of ours on it (not ``alone``) is left in peace
        unless its counters are needed."""
        needed = not self._runner.reports_per_request and self._runner.speculating is not False
        if not needed and not alone:
            return
        self._load = await self._read_counters(COUNTERS_BEFORE_S)
        self._before = self._load  # also where a record is expected: it may not come

    async def _read_counters(self, timeout_s: float) -> counters.Counters | None:
        try:
            return await self._runner.counters(timeout_s)
        except Exception as error:  # noqa: BLE001  # a figure may be missing, a race may not
            _log.exception("counters failed unexpectedly", lane=self.name, error=type(error).__name__)
            return None

    async def settle_counters(self) -> None:
        """After the end, wait (at most two seconds) for the counters to catch up, and append their growth, or why it
        cannot be known."""
        if self._record is not None or self.received == 0 or self._race.stopping:
            return
        if self._before is None or not self._before.speculating:
            return
        tokens = self._race.numbers(self.name).completion_tokens
        record = await self._settled(self._before, tokens, self._runner.identity.num_speculative_tokens)
        self._race.append(LaneDrafts(t_ms=self._race.at_ms(), lane=self.name, record=record))

    async def _settled(self, before: counters.Counters, tokens: int | None, k: int | None) -> SpecRecord:
        seen: growth.Growth | None = None
        asked_at: float | None = None
        failed = False
        with anyio.move_on_after(COUNTERS_SETTLE_S):
            while True:
                asked_at = anyio.current_time()
                after = await self._read_counters(COUNTERS_SETTLE_S)
                asked_at, failed = None, after is None
                if after is not None:
                    previous, seen = seen, growth.growth(before, after)
                    if seen is None:
                        return growth.unknown("incomplete")
                    if growth.settled(seen, previous, tokens, k):
                        return growth.record(seen, tokens, k)
                await anyio.sleep(0.1)
        hangs = asked_at is not None and anyio.current_time() - asked_at > COUNTERS_BEFORE_S
        if seen is None or failed or hangs:
            return growth.unknown("unreadable")
        return growth.final(seen, tokens, k)
