"""The figures of a race: a pure fold of its events. The one place in the code where a figure is computed.

Of one lane, with N completion tokens:

    TTFT                first token - request sent                ms
    E2E                 last token - request sent                 ms, once the lane has ended
    TPOT                (last token - first token) / (N - 1)      ms, none when N < 2
    decode tokens/s     1000 / TPOT
    tokens/s            N / E2E; while it streams N / (now - request sent)

Of the pair:

    speedup             (N_s / E2E_s) / (N_b / E2E_b), live with the running tokens/s; a finished lane keeps its own
    decode speedup      TPOT_b / TPOT_s
    tau                 effective tokens per pass of the speculative lane (app/race/acceptance.py)
    step cost r         TPOT_s * tau / TPOT_b: what such a pass costs in plain steps; decode speedup = tau / r

No ratio when a lane failed, was cut off, aborted or interrupted, while a token count is an estimate, or from a single
token (that would be a ratio of TTFTs).
No verdict but from two finished lanes, and none where the prefix cache served them differently.
"""

from __future__ import annotations

from app.race.acceptance import StreamEstimate, from_record, ratio
from app.race.cause import cause
from app.race.divergence import Answer, Margin, TextReading, compare, margin, rated
from app.race.events import (
    Event,
    LaneChunk,
    LaneDrafts,
    LaneFailed,
    LaneFinished,
    LaneStarted,
    LaneUsage,
    LaneVocabulary,
    RaceFinished,
    RaceMargin,
    RaceQueued,
    RaceStarted,
)
from app.race.provenance import Provenance, provenance
from app.race.quality import doubts
from app.race.spelling import Lookup, Shared
from app.race.types import (
    LANES,
    Acceptance,
    Caveat,
    Comparison,
    LaneError,
    LaneIdentity,
    LaneName,
    LaneNumbers,
    LaneStatus,
    RaceStatus,
    Setting,
    SpecRecord,
    TextVerdict,
    Usage,
    Verdict,
)

SAME_WITHIN = 0.02
"""A single race cannot tell two servers apart whose speeds differ by less than this share."""


class LaneBoard:
    """The fold of one lane's events."""

    def __init__(self, lane: LaneName) -> None:
        self.lane: LaneName = lane
        self.closed = False
        """Whether the race is over: no record can come any more."""
        self.identity = LaneIdentity()
        self.speculating: bool | None = None
        self._begin()

    def _begin(self) -> None:
        self.status: LaneStatus = "waiting"
        self.error: LaneError | None = None
        self.finish_reason: str | None = None
        self.sent_ms: float | None = None
        self.first_ms: float | None = None
        self.last_ms: float | None = None
        self.chunks = 0
        self.usage = Usage()
        self.record: SpecRecord | None = None
        self.token_ids: list[int] | None = []
        self.called_tool = False
        self.retried = False
        self.salted = False
        self.requests_running: int | None = None
        self.requests_waiting: int | None = None
        self.received: list[LaneChunk] = []
        self._provenance: Provenance | None = None
        self._texts: list[str] = []
        self._reasonings: list[str] = []
        self._pieces: list[tuple[int, str]] = []
        self._counted = 0
        self._countable = True
        self._exact = True
        self._estimate = StreamEstimate(k=self.identity.num_speculative_tokens)

    @property
    def text(self) -> str:
        """The answer so far, as the server sent it."""
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        """The reasoning so far (``delta.reasoning`` or ``delta.reasoning_content``)."""
        return "".join(self._reasonings)

    def answer(self, lookup: Lookup) -> Answer:
        """All that came, reasoning included, chunk by chunk."""
        return Answer(self._pieces, self.token_ids, lookup)

    @property
    def ended(self) -> bool:
        """Whether nothing more comes from this lane."""
        return self.status not in ("waiting", "streaming")

    @property
    def others(self) -> int | None:
        """Requests that the server had in hand just before the race, None where it did not tell."""
        counts = (self.requests_running, self.requests_waiting)
        return None if counts == (None, None) else sum(count or 0 for count in counts)

    @property
    def tokens(self) -> int | None:
        """N so far. The server's final count has the last word; without any count there is no number."""
        if self.usage.completion_tokens is not None:
            return self.usage.completion_tokens
        return self._counted if self._countable and self.chunks else None

    @property
    def tokens_estimated(self) -> bool:
        """Whether N is missing or rests on running counts that contradicted themselves."""
        return self.usage.completion_tokens is None and not (self._countable and self._exact)

    def apply(self, event: Event) -> None:
        """Take in one event of this lane."""
        match event:
            case LaneStarted():
                self.identity = LaneIdentity(
                    model=event.model, method=event.method, num_speculative_tokens=event.num_speculative_tokens
                )
                self.speculating = event.speculating
                self._begin()
                self.status, self.sent_ms, self.retried = "streaming", event.t_ms, event.retried
                self.salted = event.salted
                self.requests_running, self.requests_waiting = event.requests_running, event.requests_waiting
            case LaneChunk():
                self._chunk(event)
            case LaneUsage():
                self.usage = Usage(
                    prompt_tokens=event.prompt_tokens,
                    completion_tokens=event.completion_tokens,
                    cached_tokens=event.cached_tokens,
                )
            case LaneDrafts():
                self.record, self._provenance = event.record, None
                if event.record.source == "request":
                    self.speculating = True  # whatever its counters did not show
            case LaneFinished():
                self.status, self.finish_reason = event.status, event.finish_reason
            case LaneFailed():
                self.status, self.error = event.status, event.error
            case _:
                pass

    def _chunk(self, event: LaneChunk) -> None:
        self.chunks += 1
        self.received.append(event)
        self._provenance = None
        if event.text:
            (self._reasonings if event.reasoning else self._texts).append(event.text)
        self._pieces.append((len(event.token_ids or ()), event.text))
        self.called_tool = self.called_tool or event.tool_call
        self.first_ms = event.t_ms if self.first_ms is None else self.first_ms
        self.last_ms = event.t_ms
        if event.tokens is None:
            self._countable = False
        else:
            self._counted += event.tokens
            self._estimate.add(event.tokens)
        self._exact = self._exact and event.tokens_exact
        if event.token_ids is None:
            self.token_ids = None
        elif self.token_ids is not None:
            self.token_ids.extend(event.token_ids)

    def numbers(self, now_ms: float, *, ending: LaneStatus | None = None) -> LaneNumbers:
        """The lane's figures at ``now_ms`` (race clock); ``ending`` reads them as they will be with that end."""
        tokens = self.tokens
        ended = self.ended or ending is not None
        ttft = _span(self.sent_ms, self.first_ms)
        e2e = _span(self.sent_ms, self.last_ms) if ended else None
        tpot = None
        if tokens is not None and tokens >= 2 and not self.tokens_estimated:
            tpot = ratio(_span(self.first_ms, self.last_ms), tokens - 1) or None
        per_ms = None if self.first_ms is None else ratio(tokens, e2e if ended else _span(self.sent_ms, now_ms))
        return LaneNumbers(
            status=ending or self.status,
            prompt_tokens=self.usage.prompt_tokens,
            cached_tokens=self.usage.cached_tokens,
            completion_tokens=tokens,
            tokens_estimated=self.chunks > 0 and self.tokens_estimated,
            chunks=self.chunks,
            ttft_ms=ttft,
            tpot_ms=tpot,
            e2e_ms=e2e,
            tokens_per_second=None if per_ms is None or self.tokens_estimated else 1000 * per_ms,
            decode_tokens_per_second=ratio(1000.0, tpot),
            acceptance=self.acceptance,
        )

    def elapsed_ms(self, now_ms: float) -> float | None:
        """How long the lane has been at it, until its last token once it has ended; None before it was sent."""
        return _span(self.sent_ms, self.last_ms if self.ended or self.closed else now_ms)

    @property
    def drafts_shown(self) -> bool:
        """Whether it makes sense to ask which tokens came from a draft."""
        if self.lane == "baseline" or self.speculating is False:
            return False
        return self.speculating is True or self.identity.method is not None or self.record is not None

    @property
    def provenance(self) -> Provenance:
        """Which tokens came from the draft, as far as known by now."""
        if self._provenance is None:
            sizes = [chunk.tokens for chunk in self.received]
            self._provenance = provenance(sizes, self.identity.num_speculative_tokens, self.record)
        return self._provenance

    @property
    def drafted_so_far(self) -> tuple[int, int]:
        """While the lane streams: tokens that look drafted, and all that were counted."""
        return self._estimate.accepted, self._estimate.tokens

    @property
    def acceptance(self) -> Acceptance | None:
        """Acceptance from the best source there is; None for a lane that does not speculate. The estimate from the
        stream is for the eye while the race runs: once it is over there is a record of the server's, or nothing."""
        if self.record is not None:
            return from_record(self.record, None if self.tokens_estimated else self.tokens)
        if self.lane == "baseline" or self.speculating is False or self.closed:
            return None
        return self._estimate.reading()


class Scoreboard:
    """The fold of a whole race. Apply the events in order; read figures at any instant."""

    def __init__(self) -> None:
        self.lanes: dict[LaneName, LaneBoard] = {lane: LaneBoard(lane) for lane in LANES}
        self.status: RaceStatus = "queued"
        self.position: int | None = None
        self.was_queued = False
        self.queue_ms: float | None = None
        self.in_flight: int | None = None
        self.started_ms: float | None = None
        self.now_ms = 0.0
        self.vocabulary = Shared(LANES)
        self.setting: Setting | None = None
        self.known: tuple[Caveat, ...] = ()
        """Caveats known before the first token."""
        self.margin: Margin | None = None
        self._compared: TextReading | None = None
        self._quality: tuple[Caveat, ...] | None = None

    @property
    def over(self) -> bool:
        """Whether the race has ended, in whatever way."""
        return self.status not in ("queued", "running")

    def apply(self, event: Event) -> None:
        """Take in one event. Readings (``lane.figures``, ``comparison``) change nothing."""
        self.now_ms = max(self.now_ms, event.t_ms)
        if isinstance(event, LaneChunk):
            self.vocabulary.hear(event.lane, event.token_ids, event.text)
        elif isinstance(event, LaneStarted):
            self.vocabulary.again(event.lane)
        elif isinstance(event, LaneVocabulary):
            self.vocabulary.tell(event.lane, event.ids, event.texts)
            self._compared = None
        match event:
            case RaceQueued():
                self.position, self.was_queued = event.position, True
            case RaceStarted():
                self.status, self.position, self.started_ms = "running", None, event.t_ms
                self.queue_ms, self.in_flight, self.known = event.queue_ms, event.in_flight, event.conditions
                self.setting = event.setting
            case RaceFinished():
                self.status = event.status
                for lane in self.lanes.values():
                    lane.closed = True
            case LaneStarted() | LaneChunk() | LaneUsage() | LaneDrafts() | LaneFinished() | LaneFailed():
                self.lanes[event.lane].apply(event)
                self._compared = self._quality = None
            case RaceMargin():
                self.margin = margin(event.index, event.baseline, event.speculative)
                self._compared = None
            case _:
                pass

    def numbers(self, lane: LaneName, now_ms: float | None = None, *, ending: LaneStatus | None = None) -> LaneNumbers:
        """One lane's figures at ``now_ms`` (race clock; default: the newest event)."""
        return self.lanes[lane].numbers(self.now_ms if now_ms is None else now_ms, ending=ending)

    def comparison(self, now_ms: float | None = None, *, greedy: bool) -> Comparison:
        """Speculative against baseline at ``now_ms``. ``greedy`` (temperature 0) allows the text comparison."""
        base, spec = self.lanes["baseline"], self.lanes["speculative"]
        b, s = self.numbers("baseline", now_ms), self.numbers("speculative", now_ms)
        speedup = decode = verdict = None
        able = ("finished", "stopped") if self.over else ("streaming", "finished", "stopped")
        if all(lane.status in able for lane in (base, spec)):
            if min(b.completion_tokens or 0, s.completion_tokens or 0) >= 2:
                speedup = ratio(s.tokens_per_second, b.tokens_per_second)
            decode = ratio(b.tpot_ms, s.tpot_ms)
        text = self.same_text(greedy=greedy)
        caveats = self._caveats(b, s, text.verdict)
        # a prompt that one server found in its prefix cache and the other did not: no win of speculation, no loss (P21)
        if base.status == spec.status == "finished" and "prefix_cache_differs" not in caveats:
            verdict = judge(speedup)
        told = None if s.acceptance is None or s.acceptance.source == "stream" else s.acceptance
        tau = None if decode is None or told is None else told.effective_tokens_per_pass
        cost = None if tau is None else ratio(tau, decode)
        return Comparison(
            speedup=speedup,
            decode_speedup=decode,
            verdict=verdict,
            text=text.verdict,
            diverges_at_token=text.divergence.token if text.divergence else None,
            caveats=caveats,
            tau=tau,
            step_cost=cost,
            cause=None
            if verdict is None
            else cause(
                speedup,
                decode,
                tau,
                cost,
                shared="shared_device" in caveats,
                ttft_spoilt="cold_start" in caveats or "prefix_cache_differs" in caveats,
            ),
        )

    def same_text(self, *, greedy: bool) -> TextReading:
        """Whether both answers are the same text, compared once both lanes have finished (app/race/divergence.py)."""
        base, spec = self.lanes["baseline"], self.lanes["speculative"]
        if not greedy:
            return TextReading(verdict="not_comparable", reason="sampled")
        if base.status != "finished" or spec.status != "finished":
            return TextReading(verdict="not_comparable", reason="unfinished")
        if not base.chunks or not spec.chunks:
            return TextReading(verdict="not_comparable", reason="no_answer")
        if self._compared is None:
            self._compared = rated(compare(*self._answers()), self.margin)
        return self._compared

    def _doubtful_text(self, s: LaneNumbers) -> tuple[Caveat, ...]:
        """What is odd about the speculative lane's text, looked at once both lanes have ended (app/race/quality.py)."""
        base, spec = self.lanes["baseline"], self.lanes["speculative"]
        if not base.ended or not spec.ended or s.acceptance is None:
            return ()
        if self._quality is None:
            self._quality = doubts(*self._answers(), s.acceptance.rate)
        return self._quality

    def _answers(self) -> tuple[Answer, Answer]:
        base, spec = (self.lanes[lane].answer(self.vocabulary.lookup(lane)) for lane in LANES)
        return base, spec

    def _caveats(self, b: LaneNumbers, s: LaneNumbers, text: TextVerdict) -> tuple[Caveat, ...]:
        """What could spoil the comparison, in a fixed order."""
        lanes = list(self.lanes.values())
        records = [lane.record for lane in lanes if lane.record is not None]
        cached = [lane.usage.cached_tokens or 0 for lane in lanes]
        over = all(lane.status == "finished" for lane in lanes)
        found: dict[Caveat, bool] = dict.fromkeys(self.known, True)
        found["cached_prompt"] = any(cached)
        found["prefix_cache_differs"] = over and cached[0] != cached[1]
        found["tokens_estimated"] = b.tokens_estimated or s.tokens_estimated
        counts = (b.completion_tokens, s.completion_tokens)
        found["lengths_differ"] = over and None not in counts and counts[0] != counts[1]
        found["retried"] = any(lane.retried for lane in lanes)
        busy = any(lane.others for lane in lanes)
        found["other_traffic"] = busy or any(not record.exclusive for record in records)
        found["counters_reset"] = any(record.reset for record in records)
        found["no_drafts"] = any(record.drafted == 0 and record.certain for record in records)
        found["text_diverged"] = text == "diverged"
        found.update(dict.fromkeys(self._doubtful_text(s), True))
        return tuple(caveat for caveat, holds in found.items() if holds)


def judge(speedup: float | None) -> Verdict | None:
    """The verdict in one word: "same" within 2 % either way, where one race cannot tell."""
    if speedup is None:
        return None
    if abs(speedup - 1) <= SAME_WITHIN:
        return "same"
    return "faster" if speedup > 1 else "slower"


def _span(start_ms: float | None, end_ms: float | None) -> float | None:
    return None if start_ms is None or end_ms is None else end_ms - start_ms
