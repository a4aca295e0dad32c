"""Sentences of the page: what states, caveats, errors and numbers are called. No markup, no figures."""

from __future__ import annotations

from msgspec import Struct

from app.race.types import (
    AcceptanceSource,
    Caveat,
    EndpointStatus,
    EnginePhase,
    ErrorKind,
    LaneName,
    Schedule,
)

LANE_TITLES: dict[LaneName, str] = {"baseline": "Baseline", "speculative": "Speculative"}

METHODS = {
    "ngram": "n-gram lookup",
    "ngram_gpu": "n-gram lookup (GPU)",
    "draft_model": "draft model",
    "eagle": "EAGLE",
    "eagle3": "EAGLE-3",
    "medusa": "Medusa",
    "mtp": "multi-token prediction",
    "suffix": "suffix decoding",
    "mlp_speculator": "MLP speculator",
    "unknown": "speculative, method not reported",
}

SCHEDULES: dict[Schedule, tuple[str, str]] = {
    "together": (
        "Together",
        "Both servers answer at once, as on stage. Servers that share a device slow each other down.",
    ),
    "in_turn": (
        "In turn",
        "One after the other: what a user gets who has the device alone.",
    ),
}

SOURCES: dict[AcceptanceSource, tuple[str, str]] = {
    "request": ("per-request record", "The server counted this very request and sent the counts with its last chunk."),
    "server": ("server counters", "Growth of the server's /metrics counters during this race."),
    "stream": (
        "live estimate from chunk sizes",
        "A chunk of m tokens accepted at most m − 1 drafts. Replaced by the server's own counts at the end.",
    ),
}

LAMPS: dict[EndpointStatus, str] = {"ready": "ready", "starting": "starting", "down": "down", "stopped": "stopped"}

PHASES: dict[EnginePhase, str] = {
    "installing": "installing vLLM",
    "preparing_weights": "preparing weights",
    "starting": "starting",
    "loading_weights": "loading weights",
    "compiling": "compiling",
    "warming_up": "warming up",
    "ready": "ready",
    "restarting": "crashed; it restarts by itself",
    "failed": "cannot run here",
    "stopped": "stopped",
}
PHASE_STEPS: tuple[tuple[EnginePhase, str], ...] = (
    ("installing", "install"),
    ("preparing_weights", "weights"),
    ("starting", "start"),
    ("loading_weights", "load"),
    ("compiling", "compile"),
    ("warming_up", "warm up"),
    ("ready", "ready"),
)

ERRORS: dict[ErrorKind, str] = {
    "connection_refused": "Connection refused",
    "connect_timeout": "No connection in time",
    "first_token_timeout": "No first token in time",
    "stalled": "Stalled",
    "unauthorized": "Key not accepted",
    "model_not_found": "Model not found",
    "bad_request": "Request refused",
    "rate_limited": "Rate limited",
    "unavailable": "Server not available",
    "server_error": "Server error",
    "not_a_model_server": "Not a model server",
    "bad_stream": "Unreadable stream",
    "stream_error": "Error in mid-stream",
    "cut_off": "Cut off",
    "aborted": "Aborted by the server",
    "tls": "Certificate not accepted",
}

CAVEATS: dict[Caveat, tuple[str, str]] = {
    "prefix_cache_differs": (
        "prefix cache differs",
        "One server took more of the prompt from its prefix cache than the other. TTFT is not comparable.",
    ),
    "cached_prompt": (
        "cached prompt",
        "Part of the prompt came from the prefix cache, so reading it cost less than it would the first time.",
    ),
    "cold_start": (
        "cold start",
        "The first request after a server's start compiles kernels and is slower. Run it again before you believe it.",
    ),
    "shared_device": (
        "shared device",
        "Both servers ran at once on one device and slowed each other. Race them in turn to see each alone.",
    ),
    "other_traffic": (
        "other traffic",
        "The server's counters also moved for requests that are not ours, so acceptance is a mixture.",
    ),
    "tokens_estimated": (
        "tokens estimated",
        "A server sent no token counts. Its token numbers are estimates, and no ratio is printed from them.",
    ),
    "lengths_differ": (
        "lengths differ",
        "The answers have different lengths. The speedup compares output rates; decode speedup is the safer number.",
    ),
    "retried": (
        "asked twice",
        "A server refused the first form of the request and was asked again. Time counts from the second request.",
    ),
    "counters_reset": (
        "counters reset",
        "The server's counters were reset during the race (a restart), so their growth may be incomplete.",
    ),
    "text_diverged": (
        "texts diverged",
        "The two texts differ. That is no error: equal distributions do not mean equal draws, and a near-tie may flip.",
    ),
    "no_drafts": (
        "no drafts ran",
        "The server is set up to speculate, but proposed nothing in this race. Acceptance does not exist then.",
    ),
    "scheduling_differs": (
        "scheduling differs",
        "This method of speculation switches vLLM's asynchronous scheduling off; the baseline keeps it.",
    ),
}

DOUBTS: frozenset[Caveat] = frozenset(
    ("other_traffic", "counters_reset", "retried", "cold_start", "prefix_cache_differs", "cached_prompt")
)
"""The caveats that make a result doubtful; the others only say how it is to be read."""


class About(Struct, frozen=True, kw_only=True):
    """What one number means: shown on hover, tap or Enter."""

    key: str
    title: str
    formula: str
    text: str


ABOUT: tuple[About, ...] = (
    About(
        key="speedup",
        title="Speedup",
        formula="(N / E2E) speculative ÷ (N / E2E) baseline",
        text="How many times more tokens per second the speculative server put out, reading the prompt included. "
        "Below 1.00x it was slower. While the race is on it is the ratio at this instant.",
    ),
    About(
        key="decode",
        title="Decode speedup",
        formula="TPOT baseline ÷ TPOT speculative",
        text="The gain in writing alone. Speculation speeds up decode, not the reading of the prompt.",
    ),
    About(
        key="acceptance",
        title="Acceptance rate",
        formula="accepted draft tokens ÷ drafted tokens",
        text="How much of what the draft guessed the model would have written anyway. High on code, low on poems.",
    ),
    About(
        key="length",
        title="Mean acceptance length",
        formula="1 + accepted draft tokens ÷ speculative steps",
        text="Tokens per pass of the big model that had a draft to check; its own token is included.",
    ),
    About(
        key="tps",
        title="Tokens per second",
        formula="N ÷ E2E",
        text="Output rate of one request, time to first token included.",
    ),
    About(
        key="ttft",
        title="TTFT, time to first token",
        formula="first token − request sent",
        text="Reading the prompt (prefill) and waiting. Reasoning tokens count. Time in the queue does not.",
    ),
    About(
        key="tpot",
        title="TPOT, time per output token",
        formula="(last token − first token) ÷ (N − 1)",
        text="How fast the text grows in front of the reader. Does not exist for fewer than two tokens.",
    ),
    About(
        key="tokens",
        title="Tokens",
        formula="N = completion tokens",
        text="Counted by the server, never by chunks: one chunk of a speculating server carries several tokens.",
    ),
    About(
        key="elapsed",
        title="Elapsed",
        formula="E2E = last token − request sent",
        text="Runs while the lane runs; the end-to-end time once it has ended. One clock in the app stamps both lanes.",
    ),
    About(
        key="race",
        title="Race",
        formula="tokens written ÷ tokens asked for",
        text="How far each lane has come. Once both have finished, the longer answer is the full track.",
    ),
    About(
        key="time",
        title="Where the time went",
        formula="pale: until the first token · solid: writing",
        text="Both lanes on one time axis. A long prompt makes the pale part long; speculation cannot shorten it.",
    ),
    About(
        key="text",
        title="The same text?",
        formula="",
        text="At temperature 0 the two answers are compared token by token. With sampling, or when a lane did not "
        "finish, there is nothing to compare.",
    ),
    About(
        key="schedule",
        title="Together or in turn",
        formula="",
        text="Together: both servers answer at once, as on stage; servers that share a device slow each other down. "
        "In turn: one after the other, what a user gets who has the device alone. Never mix the two in one comparison.",
    ),
)
