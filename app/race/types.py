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
CounterDoubt = Literal["reset", "unreadable", "incomplete", "contradictory", "late"]
"""Why counters say nothing: they restarted without a proof; a value is no count; one of the family is missing or was
there before without being seen; they contradict each other; they did not catch up in time."""
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
Cause = Literal["prefill_bound", "low_acceptance", "costly_steps", "shared_device"]
"""Why speculation gained little or nothing; the rule is in app/race/cause.py."""
ConditionName = Literal[
    "cached_tokens",
    "salt_refused",
    "cold_start",
    "shared_device",
    "other_requests",
    "lengths_differ",
    "scheduling_differs",
    "tokens_estimated",
]
Holds = Literal["yes", "no", "unknown"]
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
    "garbled_text",
    "repetition_loop",
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


class Setting(Struct, frozen=True, kw_only=True):
    """What is known of the pair before the first token of a race; None where there is no way to know.

    ``*_warm``: the server has generated before. ``shared_device``: the two servers run on one device; ``same_host``:
    their addresses name one machine. ``scheduling_differs``: the method loses vLLM's async scheduling and the baseline
    keeps it.
    """

    baseline_warm: bool | None = None
    speculative_warm: bool | None = None
    shared_device: bool | None = None
    same_host: bool = False
    scheduling_differs: bool | None = None


class Condition(Struct, frozen=True, kw_only=True):
    """One thing that could spoil a result, whether it holds in this race, and what was seen of it in each lane: a count
    (cached tokens, requests, tokens) or a yes and no; None where a lane says nothing (app/race/fairness.py)."""

    name: ConditionName
    holds: Holds
    baseline: int | bool | None = None
    speculative: int | bool | None = None


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

    ``drafts`` (S) steps that proposed at least one token, None where the server does not count them
    (llama.cpp); ``drafted`` (D), ``accepted`` (A). ``accepted_at_least[i]`` counts steps that accepted
    more than ``i`` tokens (position ``i``, from 0). ``histogram[j]`` counts steps that accepted exactly
    ``j``. The two lists of steps are there only with vLLM's ``--per-request-spec-decode-metrics
    detailed``. ``num_spec_tokens`` is k, as far as the record itself tells it.
    """

    source: AcceptanceSource
    drafts: int | None
    drafted: int
    accepted: int
    accepted_at_least: tuple[int, ...] | None = None
    histogram: tuple[int, ...] | None = None
    per_step_accepted: tuple[int, ...] | None = None
    per_step_drafted: tuple[int, ...] | None = None
    num_spec_tokens: int | None = None
    exclusive: bool = True
    reset: bool = False
    certain: bool = True
    """False when the growth of the counters cannot be known: every figure is n/a then."""
    doubt: CounterDoubt | None = None
    """Why it cannot be known."""


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
    prompt_token_ids: tuple[int, ...] | None = None
    """The prompt as the server read it, once, with the first chunk; kept in memory only."""


class Acceptance(Struct, frozen=True, kw_only=True):
    """Acceptance; the formulas are in app/race/acceptance.py. ``per_position[i]`` is the share of steps that
    accepted more than ``i`` tokens, ``conditional[i]`` the share of those of them that got that far. With source
    "stream" it is a live estimate from chunk sizes: drafted tokens are not observable there and stay None.
    ``doubt`` says why every figure is missing although there is a source."""

    source: AcceptanceSource
    rate: float | None
    mean_length: float | None
    drafts: int | None
    drafted: int | None
    accepted: int | None
    per_position: tuple[float, ...] | None = None
    histogram: tuple[int, ...] | None = None
    exclusive: bool = True
    conditional: tuple[float | None, ...] | None = None
    effective_tokens_per_pass: float | None = None
    share_of_output: float | None = None
    alpha: float | None = None
    doubt: CounterDoubt | None = None


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
    ``decode_speedup`` is TPOT_b / TPOT_s. Neither is ever clamped. ``tau`` is tokens per pass of the target,
    ``step_cost`` (r) what such a pass costs in plain steps; decode speedup = tau / r. ``cause`` is there only where
    little or nothing was gained."""

    speedup: float | None = None
    decode_speedup: float | None = None
    verdict: Verdict | None = None
    text: TextVerdict = "not_comparable"
    diverges_at_token: int | None = None
    caveats: tuple[Caveat, ...] = ()
    tau: float | None = None
    step_cost: float | None = None
    cause: Cause | None = None


class Candidate(Struct, frozen=True, kw_only=True):
    """One of the two tokens at the place where greedy answers part. ``logprob``: the target's natural log-probability
    of it, None where the server did not list it."""

    token_id: int
    logprob: float | None = None


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

    ``speculating`` is None until /metrics was read. ``detail`` says what is wrong and what to do. ``warm``: it has
    generated since its start, None where nobody can tell.
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
    warm: bool | None = None
