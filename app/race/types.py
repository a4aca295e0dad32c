"""Names and plain structs used in every room. No behaviour, no I/O.

Units are in the names (``_ms``, ``_tps``). A number that does not exist is ``None``; it is printed
as "n/a" and never as 0, NaN or a guess. Definitions of the numbers: app/race/scoreboard.py.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

LaneName = Literal["baseline", "speculative"]
LANES: tuple[LaneName, LaneName] = ("baseline", "speculative")

Schedule = Literal["together", "in_turn"]
RaceStatus = Literal["queued", "running", "finished", "partial", "failed", "stopped", "interrupted"]
LaneStatus = Literal["waiting", "streaming", "finished", "failed", "cut_off", "aborted", "stopped"]
Verdict = Literal["faster", "slower", "same"]
TextVerdict = Literal["identical", "diverged", "not_comparable"]
AcceptanceSource = Literal["request", "server", "stream"]
ErrorKind = Literal[
    "connection_refused",
    "connect_timeout",
    "first_token_timeout",
    "stalled",
    "unauthorized",
    "model_not_found",
    "bad_request",
    "rate_limited",
    "unavailable",
    "server_error",
    "not_a_model_server",
    "bad_stream",
    "stream_error",
    "cut_off",
    "aborted",
    "tls",
]
Caveat = Literal[
    "prefix_cache_differs",
    "cached_prompt",
    "cold_start",
    "shared_device",
    "other_traffic",
    "tokens_estimated",
    "lengths_differ",
    "retried",
    "counters_reset",
    "text_diverged",
    "no_drafts",
    "scheduling_differs",
]


class Sampling(Struct, frozen=True, kw_only=True):
    """What both servers are asked for, always sent explicitly (server defaults differ: P43.3)."""

    temperature: float
    top_p: float
    seed: int
    max_tokens: int
    ignore_eos: bool


class RaceSpec(Struct, frozen=True, kw_only=True):
    """One race as asked for: the same prompt and sampling for both lanes."""

    workload: str | None
    prompt: str
    system: str | None
    sampling: Sampling
    schedule: Schedule
    first: LaneName = "baseline"
    """Who goes first when the lanes run in turn; repeats alternate it."""
    cache_salt: str | None = None
    """Sent to both servers when set: no prompt of another race shares its prefix-cache blocks."""


class Recorded(Struct, frozen=True, kw_only=True):
    """Where a recorded run comes from. ``on`` is the hardware in words, ``at`` an ISO 8601 date."""

    on: str
    vllm: str
    at: str


class LaneError(Struct, frozen=True, kw_only=True):
    """Why a lane did not finish. ``message`` says what happened and what to do about it."""

    kind: ErrorKind
    message: str


class LaneIdentity(Struct, frozen=True, kw_only=True):
    """Who runs in a lane. ``method`` is None when the server does not speculate, "unknown" when it
    does and does not say how."""

    model: str | None = None
    method: str | None = None
    num_speculative_tokens: int | None = None


class Usage(Struct, frozen=True, kw_only=True):
    """The server's own token counts, as far as it gave them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class SpecRecord(Struct, frozen=True, kw_only=True):
    """Facts about speculation in one request: the server's per-request record, or counter growth.

    ``drafts`` (S) steps that proposed at least one token, ``drafted`` (D), ``accepted`` (A).
    ``accepted_at_least[i]`` counts steps that accepted more than ``i`` tokens (position ``i``, from
    0). ``histogram[j]`` counts steps that accepted exactly ``j``. The two lists of steps are there
    only with vLLM's ``--per-request-spec-decode-metrics detailed``.
    """

    source: AcceptanceSource
    drafts: int
    drafted: int
    accepted: int
    accepted_at_least: tuple[int, ...] | None = None
    histogram: tuple[int, ...] | None = None
    per_step_accepted: tuple[int, ...] | None = None
    per_step_drafted: tuple[int, ...] | None = None
    exclusive: bool = True
    reset: bool = False
    certain: bool = True
    """False when counters restarted in the race and their growth cannot be known: every figure is n/a then."""


class Chunk(Struct, frozen=True, kw_only=True):
    """One decoded upstream message, stamped (``at_ns``, the app's monotonic clock) when its last
    byte arrived and before it was parsed.

    ``tokens`` is the number of tokens it brought, None when the server gives no running count.
    ``tokens_exact`` is False when the count rests on running usage that contradicted itself.
    """

    at_ns: int
    text: str = ""
    reasoning: str = ""
    tokens: int | None = None
    tokens_exact: bool = True
    token_ids: tuple[int, ...] | None = None
    tool_call: bool = False
    finish_reason: str | None = None
    usage: Usage | None = None
    spec: SpecRecord | None = None


class Acceptance(Struct, frozen=True, kw_only=True):
    """Acceptance as metrics.md defines it. ``rate`` A/D, ``mean_length`` 1 + A/S,
    ``per_position[i]`` share of steps that accepted more than ``i`` tokens. With source "stream" it
    is a live estimate from chunk sizes: drafted tokens are not observable there and stay None."""

    source: AcceptanceSource
    rate: float | None
    mean_length: float | None
    drafts: int | None
    drafted: int | None
    accepted: int | None
    per_position: tuple[float, ...] | None = None
    histogram: tuple[int, ...] | None = None
    exclusive: bool = True


class LaneNumbers(Struct, frozen=True, kw_only=True):
    """The figures of one lane at one instant; formulas in app/race/scoreboard.py."""

    status: LaneStatus = "waiting"
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


class Comparison(Struct, frozen=True, kw_only=True):
    """Speculative against baseline. ``speedup`` is the ratio of output rates, prefill included;
    ``decode_speedup`` is TPOT_b / TPOT_s. Neither is ever clamped."""

    speedup: float | None = None
    decode_speedup: float | None = None
    verdict: Verdict | None = None
    text: TextVerdict = "not_comparable"
    diverges_at_token: int | None = None
    caveats: tuple[Caveat, ...] = ()


EndpointStatus = Literal["ready", "starting", "down", "stopped"]
EnginePhase = Literal[
    "installing",
    "preparing_weights",
    "starting",
    "loading_weights",
    "compiling",
    "warming_up",
    "ready",
    "restarting",
    "failed",
    "stopped",
]


class EngineProgress(Struct, frozen=True, kw_only=True):
    """What a supervised engine is doing (``specrace up``), for terminal and page.

    ``detail`` is one line for people; ``log_tail`` the last lines the engine printed.
    """

    phase: EnginePhase
    detail: str
    elapsed_s: float
    log_tail: tuple[str, ...] = ()
    restarts: int = 0


class EndpointState(Struct, frozen=True, kw_only=True):
    """One server as the app sees it between races. Never holds its address or key.

    ``speculating`` is None until /metrics was read. ``detail`` says what is wrong and what to do.
    """

    lane: LaneName
    status: EndpointStatus = "down"
    identity: LaneIdentity = LaneIdentity()
    detail: str | None = None
    error: LaneError | None = None
    speculating: bool | None = None
    max_model_len: int | None = None
    version: str | None = None
    latency_ms: float | None = None
    engine: EngineProgress | None = None
