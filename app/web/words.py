"""Sentences of the page: what states, caveats, errors and numbers are called. No markup, no figures."""

from __future__ import annotations

from msgspec import Struct

from app.race.types import (
    AcceptanceSource,
    Cause,
    Caveat,
    ConditionName,
    EndpointStatus,
    EnginePhase,
    ErrorKind,
    Holds,
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
        "Both at once, as on stage. Servers on one device slow each other down.",
    ),
    "in_turn": (
        "In turn",
        "One after the other: what a user alone on the device gets.",
    ),
}

SOURCES: dict[AcceptanceSource, tuple[str, str]] = {
    "request": ("per-request record", "The server counted this very request and sent the counts with its last chunk."),
    "server": ("server counters", "Growth of the server's /metrics counters during this race."),
    "stream": (
        "live estimate from chunk sizes",
        (
            "A chunk of m tokens accepted at most m − 1 drafts: too many where chunks were merged. Every step counts "
            "as k drafted: too low for n-gram and suffix, which skip steps. The server's counts replace it at the end."
        ),
    ),
}

LAMPS: dict[EndpointStatus, str] = {"ready": "ready", "starting": "starting", "down": "down", "stopped": "stopped"}

COLD = "Both servers are cold"
ONE_COLD = "{} is cold"
MAY_BE_COLD = "A server may be cold"
WARMING = "Warming up"

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
        "The first request after a server's start compiles kernels and is slower. Warm up first, or race again.",
    ),
    "shared_device": (
        "shared device",
        "Both servers ran at once on one device and slowed each other. Race them in turn to see each alone.",
    ),
    "other_traffic": (
        "other traffic",
        "A server also worked for requests that are not ours. They slow it, and its counters are a mixture.",
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
    "garbled_text": (
        "garbled text",
        (
            "Hardly a draft was accepted, and the speculative text is no text: broken characters, mixed scripts, glued "
            "pieces of words. The baseline's is sound. Look at that server's sampling before you believe its speed."
        ),
    ),
    "repetition_loop": (
        "repetition loop",
        (
            "The answer ends in a block that repeats to the letter, and nearly every draft was accepted. A loop is "
            "what a draft guesses best: the speedup is that of the loop, not of the prompt."
        ),
    ),
    "scheduling_differs": (
        "scheduling differs",
        "This method of speculation switches vLLM's asynchronous scheduling off; the baseline keeps it.",
    ),
}

CAUSES: dict[Cause, tuple[str, str]] = {
    "low_acceptance": (
        "{tau} tokens a pass for {cost} a step: drafts rarely accepted",
        (
            "{tau} tokens per pass cost {cost} a plain step; drafts are rarely accepted{rate}. It gains where a pass "
            "brings more tokens than it costs: another kind of prompt, another draft, or fewer draft tokens."
        ),
    ),
    "costly_steps": (
        "{tau} tokens a pass, but each costs {cost} a step",
        (
            "a pass brings {tau} tokens, but costs {cost} a plain step. A smaller draft, fewer draft tokens or a "
            "lighter load make it cheaper."
        ),
    ),
    "shared_device": (
        "{tau} tokens a pass for {cost} a step, both at once on one device: race in turn",
        (
            "a pass brings {tau} tokens and cost {cost} a plain step while both servers ran at once on one device. "
            "Race them in turn to see each alone."
        ),
    ),
    "prefill_bound": (
        "writing alone is {decode}; the time to the first token eats it",
        (
            "writing alone is {decode} as fast, but of {e2e} the first token took {ttft}, which speculation does not "
            "shorten. Longer answers gain more."
        ),
    ),
}
"""Why little or nothing was gained, in a few words and in a sentence that goes on after a colon."""

CONDITIONS: dict[ConditionName, tuple[str, dict[Holds, str]]] = {
    "cached_tokens": (
        "Cached prompt tokens",
        {
            "yes": "That part of the prompt was not read again: the time to the first token says less. "
            "Tick “Fresh cache” to have it read anew on both sides.",
            "no": "Both servers read the whole prompt.",
            "unknown": "A server did not tell. vLLM tells when it runs with --enable-prompt-tokens-details.",
        },
    ),
    "salt_refused": (
        "Fresh cache refused",
        {
            "yes": "A server does not take a cache salt, so only the other one's cache was avoided.",
            "no": "Both requests carried a salt of this race alone.",
            "unknown": "Not both requests went out.",
        },
    ),
    "cold_start": (
        "Cold start",
        {
            "yes": "A server had generated nothing since its start: this race paid for its first kernels. Race again.",
            "no": "Both servers had generated before.",
            "unknown": "A server does not tell whether it had generated before. Warm up, or race again, to be sure.",
        },
    ),
    "shared_device": (
        "Shared device",
        {
            "yes": "Both lanes ran at once on one device and slowed each other. Race them in turn to see each alone.",
            "no": "Neither lane slowed the other.",
            "unknown": "Both lanes ran at once, and whether their servers share a device cannot be seen from here. "
            "Race them in turn to be sure.",
        },
    ),
    "other_requests": (
        "Other requests in flight",
        {
            "yes": "The servers worked for others too: that slows a lane and mixes into the server's counters.",
            "no": "Neither server had another request in hand just before the race.",
            "unknown": "A server did not tell what else it had in hand (/metrics).",
        },
    ),
    "lengths_differ": (
        "Different lengths",
        {
            "yes": "The speedup compares output rates, so it holds; of two end-to-end times it would not.",
            "no": "Both answers have the same number of tokens.",
            "unknown": "Both lanes have to finish, with tokens that were counted.",
        },
    ),
    "scheduling_differs": (
        "Different scheduling",
        {
            "yes": "This method switches vLLM's asynchronous scheduling off and the baseline keeps it. "
            "Start the baseline with --no-async-scheduling to see the draft's effect alone.",
            "no": "Both servers schedule alike.",
            "unknown": "The method, or how the baseline was started, is not known here.",
        },
    ),
    "tokens_estimated": (
        "Estimated tokens",
        {
            "yes": "A server sent no token counts that can be trusted, so no ratio is printed.",
            "no": "Every token was counted by its server.",
            "unknown": "Nothing has been written yet.",
        },
    ),
}
"""Of each condition its name, and what it means where it holds, where it does not, and where nobody can tell."""

CONDITION_VALUES: dict[ConditionName, tuple[str, str]] = {
    "salt_refused": ("refused", "taken"),
    "cold_start": ("cold", "warm"),
    "tokens_estimated": ("estimated", "counted"),
}
"""What a lane is called for which it holds, and for which it does not; the other conditions are counts."""

DOUBTS: frozenset[Caveat] = frozenset(
    (
        "other_traffic",
        "counters_reset",
        "retried",
        "cold_start",
        "prefix_cache_differs",
        "cached_prompt",
        "garbled_text",
        "repetition_loop",
    )
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
        key="ink",
        title="Drafted tokens",
        formula="tinted and underlined: drafted, then accepted by the target",
        text="Everything else is the target's own: the token after each draft, and the first one, from the prefill. "
        "A dashed line is an estimate from the sizes of the chunks; a solid one comes from the server's record of "
        "every step. Point at a word, or tap it, to see its step and its place in the draft.",
    ),
    About(
        key="effective",
        title="Effective tokens per pass",
        formula="(N − 1) ÷ (N − 1 − accepted)",
        text="Tokens for every pass of the big model after the first token, passes without a draft included: the τ of "
        "the literature. The last step may accept more than is sent, which makes it a little high.",
    ),
    About(
        key="share",
        title="Share of output drafted",
        formula="accepted ÷ N",
        text="How much of the answer came from the draft. Some tools call this acceptance; it is another number.",
    ),
    About(
        key="alpha",
        title="Per-token alpha",
        formula="accepted ÷ (accepted + steps with a rejected token)",
        text="The chance that one tested draft token is accepted (Leviathan et al.). What follows a rejected token was "
        "not tested. It needs the single steps, or drafts that all had full length.",
    ),
    About(
        key="steps",
        title="Steps with a draft",
        formula="S = passes that checked at least one draft token",
        text="Steps without a draft are left out, as vLLM does it. llama.cpp does not count steps.",
    ),
    About(
        key="drafted",
        title="Drafted",
        formula="D = draft tokens proposed",
        text="Up to k in each step; n-gram and suffix drafts may be shorter, or missing.",
    ),
    About(
        key="accepted",
        title="Accepted",
        formula="A = draft tokens that the big model kept",
        text="Counted by the server before the answer is cut at its length limit: the last step may count a few more.",
    ),
    About(
        key="position",
        title="Acceptance by position",
        formula="steps that accepted at least i tokens ÷ S",
        text="Unconditional, as vLLM and llama.cpp print it: a later position is only reached through all before it. "
        "One plus the sum of these shares is the mean acceptance length.",
    ),
    About(
        key="conditional",
        title="Acceptance by position, conditional",
        formula="share of position i ÷ share of position i − 1",
        text="Of the steps that accepted everything before it, how many accepted this token too. A drafter that is as "
        "good at the last token as at the first has level bars.",
    ),
    About(
        key="histogram",
        title="Accepted tokens per step",
        formula="steps that accepted exactly j draft tokens",
        text="A step that accepted none still brought the big model's own token.",
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
        key="fresh",
        title="Fresh cache",
        formula="",
        text="Both requests carry a random salt of this race (vLLM's cache_salt), so neither server finds the prompt "
        "of an earlier race in its prefix cache: both read all of it. Off, a prompt raced twice may be read once.",
    ),
    About(
        key="schedule",
        title="Together or in turn",
        formula="",
        text="Together: both servers answer at once, as on stage; servers that share a device slow each other down. "
        "In turn: one after the other, what a user gets who has the device alone. Never mix the two in one comparison.",
    ),
)
