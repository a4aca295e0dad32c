"""Everything that happens in a race, as tagged structs; the log is a list of these and nothing else.

Facts (queued, started, chunk, usage, drafts, finished, failed) are what a fold needs; ``lane.figures`` and
``comparison`` are readings of the scoreboard at that instant, kept so that scripts need no arithmetic of
their own. The fold ignores them. ``t_ms`` counts from the beginning of the race on the monotonic clock.
"""

from __future__ import annotations

from typing import Union

import msgspec
from msgspec import Struct

from app.race.types import (
    Acceptance,
    Candidate,
    Cause,
    Caveat,
    LaneError,
    LaneName,
    LaneStatus,
    RaceStatus,
    Setting,
    SpecRecord,
    TextVerdict,
    Verdict,
)


class _Event(Struct, frozen=True, kw_only=True, tag_field="type"):
    t_ms: float


class RaceQueued(_Event, frozen=True, kw_only=True, tag="race.queued"):
    """Waiting for the pair. ``position`` 1 is next."""

    position: int


class RaceStarted(_Event, frozen=True, kw_only=True, tag="race.started"):
    """The pair is ours. ``queue_ms`` is never part of a figure; ``in_flight`` counts races of this app that
    run on the pair, this one included; ``conditions`` are caveats known before the first token, ``setting`` what they
    were taken from (None in races of before)."""

    queue_ms: float
    in_flight: int
    conditions: tuple[Caveat, ...] = ()
    setting: Setting | None = None


class LaneStarted(_Event, frozen=True, kw_only=True, tag="lane.started"):
    """The lane's HTTP request is being sent: t=0 of its figures. Comes again after a fallback (``retried``).

    ``speculating`` is None where the server gives no way to know. ``requests_running`` and ``requests_waiting``: what
    the server had in hand just before the race, as its /metrics told; None where it was not asked or did not tell.
    ``salted``: the request carried a cache salt.
    """

    lane: LaneName
    model: str | None = None
    method: str | None = None
    num_speculative_tokens: int | None = None
    speculating: bool | None = None
    retried: bool = False
    requests_running: int | None = None
    requests_waiting: int | None = None
    salted: bool = False


class LaneChunk(_Event, frozen=True, kw_only=True, tag="lane.chunk"):
    """Text or tokens arrived. ``tokens`` is None when the server gives no running count."""

    lane: LaneName
    text: str
    tokens: int | None
    reasoning: bool = False
    tokens_exact: bool = True
    token_ids: tuple[int, ...] | None = None
    tool_call: bool = False


class LaneVocabulary(_Event, frozen=True, kw_only=True, tag="lane.vocabulary"):
    """Texts of tokens that this lane's server told or taught earlier: those of chunks with several tokens, so that
    their text can be cut between them (app/race/spelling.py). ``texts[i]`` is the text of token ``ids[i]``."""

    lane: LaneName
    ids: tuple[int, ...]
    texts: tuple[str, ...]


class LaneUsage(_Event, frozen=True, kw_only=True, tag="lane.usage"):
    """The server's own final counts; ``completion_tokens`` here is the last word on the total."""

    lane: LaneName
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class LaneDrafts(_Event, frozen=True, kw_only=True, tag="lane.drafts"):
    """What the server says about speculation in this race (per-request record or counter growth)."""

    lane: LaneName
    record: SpecRecord


class _LaneReading(_Event, frozen=True, kw_only=True):
    """The fields of types.LaneNumbers, flat, as the contract's JSON wants them."""

    lane: LaneName
    status: LaneStatus
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    tokens_estimated: bool = False
    chunks: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None
    acceptance: Acceptance | None = None


class LaneFigures(_LaneReading, frozen=True, kw_only=True, tag="lane.figures"):
    """Running figures, a few times a second."""


class LaneFinished(_LaneReading, frozen=True, kw_only=True, tag="lane.finished"):
    """The lane ended by itself ("finished") or because somebody pressed Stop ("stopped")."""

    finish_reason: str | None = None


class LaneFailed(_LaneReading, frozen=True, kw_only=True, tag="lane.failed"):
    """The lane ended in trouble; ``status`` is failed, cut_off or aborted. Its tokens stay."""

    error: LaneError


class ComparisonRead(_Event, frozen=True, kw_only=True, tag="comparison"):
    """types.Comparison at this instant, flat."""

    speedup: float | None = None
    decode_speedup: float | None = None
    verdict: Verdict | None = None
    text: TextVerdict = "not_comparable"
    diverges_at_token: int | None = None
    caveats: tuple[Caveat, ...] = ()
    tau: float | None = None
    step_cost: float | None = None
    cause: Cause | None = None


class RaceMargin(_Event, frozen=True, kw_only=True, tag="race.margin"):
    """Greedy answers part at token ``index``: both tokens there, as the baseline's server rates them. Asked once after
    both lanes have ended, in no figure."""

    index: int
    baseline: Candidate
    speculative: Candidate


class RaceFinished(_Event, frozen=True, kw_only=True, tag="race.finished"):
    """Nothing comes after this event."""

    status: RaceStatus


Event = Union[
    RaceQueued,
    RaceStarted,
    LaneStarted,
    LaneChunk,
    LaneVocabulary,
    LaneUsage,
    LaneDrafts,
    LaneFigures,
    LaneFinished,
    LaneFailed,
    ComparisonRead,
    RaceMargin,
    RaceFinished,
]

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_encoder = msgspec.json.Encoder()


def to_json(event: Event) -> bytes:
    """The event as one line of JSON (msgspec writes NaN as null; the scoreboard never makes one)."""
    return _encoder.encode(event)


def from_json(line: bytes | str) -> Event:
    """The event that ``to_json`` wrote.

    Raises:
        msgspec.ValidationError: the line is JSON but no event of ours.
        msgspec.DecodeError: the line is not JSON.
    """
    return _decoder.decode(line)
