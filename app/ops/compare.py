"""What two servers have to have in common, and what a short race between them showed: findings about the pair. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from app.ops.findings import Finding, Level
from app.ops.judge import SLOW_TTFT_MS, method_of
from app.ops.observed import Facts
from app.race.fairness import scheduling_differs
from app.race.summary import RaceSummary
from app.race.types import LANES, AcceptanceSource, LaneName

LATENCY_TIMES, LATENCY_MS = 2.0, 20.0
"""Latencies differ much when one is this many times the other and this much longer."""

SOURCES: dict[AcceptanceSource, str] = {
    "request": "the server's record of this answer",
    "server": "the growth of the server's counters",
    "stream": "an estimate",
}

Pair = Mapping[LaneName, Facts]


def pair_findings(pair: Pair, *, same_address: bool = False, equal_scheduling: bool | None = None) -> Iterator[Finding]:
    """Everything about the pair but the race; a server that is down has nothing to be compared with.
    ``equal_scheduling`` where the flags of both are known (our own pair)."""
    if same_address:
        detail = "both lanes go to one address: one server would race itself"
        yield _finding("same_server", "problem", "Two servers", detail, "Give each lane a server of its own")
    if any(facts.state.error is not None for facts in pair.values()):
        return
    yield from swapped(pair)
    yield from model(pair)
    yield tokenizer(pair)
    yield from versions(pair)
    yield from latency(pair)
    yield prefix_cache(pair)
    yield from sampling(pair)
    yield from scheduling(pair, None if equal_scheduling is None else not equal_scheduling)


def _finding(key: str, level: Level, title: str, detail: str, *remedy: str) -> Finding:
    sentence, code = (*remedy, None, None)[:2]
    return Finding(key=key, level=level, title=title, detail=detail, remedy=sentence, code=code)


def _verb(lanes: Sequence[LaneName], one: str, several: str) -> str:
    return one if len(lanes) == 1 else several


def swapped(pair: Pair) -> Iterator[Finding]:
    """The commonest mistake has one remedy."""
    if pair["baseline"].state.speculating and pair["speculative"].state.speculating is False:
        detail = "the baseline speculates and the other server does not: the addresses are swapped"
        yield _finding("swapped", "problem", "Lanes", detail, "Give the two addresses the other way round")


def model(pair: Pair) -> Iterator[Finding]:
    """The same target model: names may differ, what was loaded should not."""
    baseline, speculative = pair["baseline"], pair["speculative"]
    names = baseline.state.identity.model, speculative.state.identity.model
    roots = _root(baseline), _root(speculative)
    lengths = baseline.state.max_model_len, speculative.state.max_model_len
    title = "Target model"
    if names[0] == names[1] or (roots[0] is not None and roots[0] == roots[1]):
        same = names[0] if names[0] == names[1] else f"{names[0]} and {names[1]}, both loaded from {roots[0]}"
        yield _finding("model", "ok", title, f"the same: {same}")
    else:
        origins = [f"{name} ({root or 'origin not told'})" for name, root in zip(names, roots, strict=True)]
        detail = f"baseline has {origins[0]}, the other {origins[1]}"
        remedy = "Serve the same target model on both, or name the right one"
        yield _finding("model", "warning", title, detail, remedy, "SPECRACE_BASELINE_MODEL, SPECRACE_SPECULATIVE_MODEL")
    if None not in lengths and lengths[0] != lengths[1]:
        detail = f"baseline {lengths[0]:,} tokens, speculative {lengths[1]:,}"
        yield _finding("context_differs", "warning", "Context", detail, "Start both with the same", "--max-model-len")


def _root(facts: Facts) -> str | None:
    return facts.served.root if facts.served else None


def tokenizer(pair: Pair) -> Finding:
    """Equal ids for a probe text in several scripts; without ids of both there is nothing to be compared."""
    baseline, speculative = pair["baseline"].probe_ids, pair["speculative"].probe_ids
    title = "Tokenizer"
    if baseline is None or speculative is None:
        mute: list[LaneName] = [lane for lane in LANES if pair[lane].probe_ids is None]
        told = f"{' and '.join(mute)} {_verb(mute, 'gives', 'give')}"
        detail = f"n/a: {told} no token ids (neither /tokenize nor return_token_ids)"
        return _finding("tokenizer", "note", title, detail)
    if baseline == speculative:
        source = pair["baseline"].ids_from
        return _finding("tokenizer", "ok", title, f"the same: {len(baseline)} equal ids for a probe text ({source})")
    at = next((i for i, (a, b) in enumerate(zip(baseline, speculative, strict=False)) if a != b), None)
    at = min(len(baseline), len(speculative)) if at is None else at
    detail = f"different: {len(baseline)} and {len(speculative)} ids for a probe text, the first difference at {at}"
    return _finding(
        "tokenizer", "problem", title, detail, "Serve the same target model, with the same --tokenizer, on both"
    )


def versions(pair: Pair) -> Iterator[Finding]:
    """Both of one version: a newer vLLM alone can be faster than speculation."""
    told = {lane: pair[lane].state.version for lane in LANES}
    kinds = {facts.kind for facts in pair.values()}
    if len(kinds) > 1:
        detail = " and ".join(f"{pair[lane].kind} ({lane})" for lane in LANES)
        yield _finding(
            "kinds",
            "warning",
            "Server",
            f"{detail}: this compares servers, not speculation",
            "Run the same server on both sides",
        )
    elif None in told.values():
        yield _finding("version", "note", "Version", "n/a here: not told by both")
    elif len(set(told.values())) == 1:
        yield _finding("version", "ok", "Version", f"{next(iter(kinds))} {told['baseline']} on both")
    else:
        detail = f"baseline {told['baseline']}, speculative {told['speculative']}"
        yield _finding("version", "warning", "Version", detail, "Install the same version on both")


def latency(pair: Pair) -> Iterator[Finding]:
    """The way to each server is part of its TTFT."""
    if not all(facts.latencies_ms for facts in pair.values()):
        return
    found = {lane: median(pair[lane].latencies_ms) for lane in LANES}
    low, high = min(found.values()), max(found.values())
    detail = f"baseline {found['baseline']:.1f} ms, speculative {found['speculative']:.1f} ms"
    if high > LATENCY_TIMES * low and high - low > LATENCY_MS:
        remedy = "Put both servers equally far from this app: the difference is part of every TTFT"
        yield _finding("latency", "warning", "Latency", detail, remedy)
    else:
        yield _finding("latency", "ok", "Latency", detail)


def prefix_cache(pair: Pair) -> Finding:
    """A prompt raced twice is read once where the cache is on; on one side only that is a fake win."""
    title, flag = "Prefix cache", "--no-enable-prefix-caching"
    on = {lane: pair[lane].prefix_caching for lane in LANES}
    if None in on.values():
        silent: list[LaneName] = [lane for lane in LANES if on[lane] is None]
        told = (
            f"{' and '.join(silent)} {_verb(silent, 'does not show whether it has', 'do not show whether they have')}"
        )
        return _finding("prefix_cache", "note", title, f"n/a here: {told} one")
    if on["baseline"] != on["speculative"]:
        only = next(lane for lane in LANES if on[lane])
        detail = f"on at the {only} server only: a prompt raced twice costs it less"
        return _finding(
            "prefix_cache", "warning", title, detail, "Use the page's fresh cache option, or start both with", flag
        )
    if on["baseline"]:
        detail = "on at both: a prompt raced twice is read from the cache, TTFT is then not that of a new prompt"
        return _finding(
            "prefix_cache", "note", title, detail, "Use the page's fresh cache option, or start both with", flag
        )
    return _finding("prefix_cache", "ok", title, "off at both: a prompt raced twice is read twice")


def sampling(pair: Pair) -> Iterator[Finding]:
    """Defaults that a server adds to what a race sends (temperature, top_p, seed, max_tokens): top_k, min_p and the
    penalties of the model's generation_config."""
    title, flag = "Sampling defaults", "--generation-config vllm"
    if any(pair[lane].answer is None or (pair[lane].error is not None) for lane in LANES):
        return
    told = {lane: _defaults(pair[lane]) for lane in LANES}
    unseen: list[LaneName] = [lane for lane in LANES if told[lane] is None]
    if unseen:
        detail = f"cannot be seen at {' and '.join(unseen)} ({_why_unseen(pair[unseen[0]])})"
        ours = all(facts.is_vllm for facts in pair.values())
        remedy = ("To have none on either side, start both with", flag) if ours else ()
        yield _finding("sampling", "note", title, detail, *remedy)
        return
    if told["baseline"] == told["speculative"]:
        if told["baseline"] == "none":
            detail = "none: samples are the same with and without top_k, min_p and penalties set to neutral"
            yield _finding("sampling", "ok", title, detail)
        else:
            detail = (
                f"both servers add {told['baseline']} of their own to what a race sends; their values cannot be seen"
            )
            yield _finding("sampling", "note", title, detail, "To have none on either side, start both with", flag)
        return
    detail = ", ".join(f"{lane} adds {told[lane]}" for lane in LANES) + " to what a race sends"
    yield _finding("sampling", "warning", title, detail, "Start both with", flag)


def _defaults(facts: Facts) -> str | None:
    """The defaults of one server in words; "none" for certain, None when they cannot be seen."""
    if facts.info is not None and facts.info.generation_config == "vllm":
        return "none"
    found = facts.defaults
    if found is None or found.status in ("refused", "not repeatable"):
        return None
    if found.status == "neutral":
        return "none"
    # one may hide another: what is named is there, what is not named may be
    return f"at least {' and '.join(found.names)}" if found.names else "several defaults together"


def _why_unseen(facts: Facts) -> str:
    status = facts.defaults.status if facts.defaults else "refused"
    return "equal seeds gave different text" if status == "not repeatable" else "the probing requests were refused"


def scheduling(pair: Pair, known: bool | None = None) -> Iterator[Finding]:
    """n-gram, suffix and Medusa switch asynchronous scheduling off; a baseline that keeps it has an advantage."""
    if not pair["speculative"].is_vllm or not pair["speculative"].state.speculating:
        return
    title, flag = "Scheduling", "--no-async-scheduling"
    told = [facts.info.async_scheduling for facts in pair.values() if facts.info is not None]
    method = method_of(pair["speculative"])
    if known is None and len(told) == len(pair) and None not in told:
        known = len(set(told)) > 1
    if known is None:
        known = scheduling_differs(method, None)
    if known is False:
        yield _finding("scheduling", "ok", title, "asynchronous scheduling is the same at both")
    elif known or method is not None:
        detail = f"{method or 'the speculative server'} runs without asynchronous scheduling"
        detail += ", the baseline with it" if known else "; a baseline keeps it where the device has it"
        yield _finding("scheduling", "note", title, detail, "To have it equal, start the baseline with", flag)
    else:
        detail = "n/a: the method is not known, and some switch asynchronous scheduling off"
        remedy = "If it is n-gram, suffix or Medusa, start the baseline with"
        yield _finding("scheduling", "note", title, detail, remedy, flag)


def race_findings(races: Sequence[RaceSummary]) -> Iterator[Finding]:
    """What one to three short races at temperature 0 showed. One prompt may diverge on a near-tie; if all do, something
    else than chance differs."""
    last = races[-1]
    if last.status != "finished":
        yield from _failed(last)
        return
    tokens = last.lanes["speculative"].completion_tokens
    if last.comparison.text == "identical":
        before = len(races) - 1
        detail = f"{tokens} tokens at temperature 0, the same text in both lanes"
        detail += f"; before it {before} of {len(races)} differed, as texts with a near-tie may" if before else ""
        yield _finding("race", "note" if before else "ok", "Short race", detail)
    elif last.comparison.text == "not_comparable":
        yield _finding("race", "note", "Short race", f"{tokens} tokens; the texts cannot be compared")
    else:
        detail = f"{len(races)} of {len(races)} texts differ at temperature 0{_from_where(races)}"
        remedy = (
            "Look for what differs: weights, quantization, dtype, attention backend. Equal kernels give equal text with"
        )
        yield _finding("race", "problem", "Short race", detail, remedy, "--dtype float32 --max-num-seqs 1")
    yield from _drafts(races)
    yield from _slow(last)


def _from_where(races: Sequence[RaceSummary]) -> str:
    """ " (from token 2, 3, 2 on)"; characters where a server gives no token ids; nothing where neither is known."""
    tokens = [race.comparison.diverges_at_token for race in races]
    if None not in tokens:
        return f" (from token {', '.join(map(str, tokens))} on)"
    characters = [None if race.divergence is None else race.divergence.character for race in races]
    return "" if None in characters else f" (from character {', '.join(map(str, characters))} on)"


def _failed(race: RaceSummary) -> Iterator[Finding]:
    for lane in LANES:
        error = race.lanes[lane].error
        if error is not None:
            yield Finding(key="race", lane=lane, level="problem", title="Short race", detail=error.message)


def _drafts(races: Sequence[RaceSummary]) -> Iterator[Finding]:
    lanes = [race.lanes["speculative"] for race in races]
    found = next((lane.acceptance for lane in lanes if lane.acceptance and lane.acceptance.drafted), None)
    title = "Acceptance"
    if found is not None and found.rate is not None:
        detail = f"{100 * found.rate:.1f}% of {found.drafted} draft tokens, from {SOURCES[found.source]}"
        yield Finding(key="acceptance", lane="speculative", level="ok", title=title, detail=detail)
        return
    told = lanes[-1].speculating
    if told is False:
        return
    if told:
        detail = "no drafts ran, though the text repeats itself"
        remedy = "Look at the method's settings and the server's log (n-gram: prompt_lookup_min and _max)"
        yield Finding(key="acceptance", lane="speculative", level="warning", title=title, detail=detail, remedy=remedy)
    else:
        detail = "n/a here: the server tells nothing about drafts"
        yield Finding(key="acceptance", lane="speculative", level="note", title=title, detail=detail)


def _slow(race: RaceSummary) -> Iterator[Finding]:
    for lane in LANES:
        ttft = race.lanes[lane].ttft_ms
        if ttft is not None and ttft > SLOW_TTFT_MS:
            detail = f"TTFT {ttft / 1000:.1f} s in the short race, on a warm server"
            remedy = "Look for other load on this server or its device"
            yield Finding(key="ttft", lane=lane, level="warning", title="First token", detail=detail, remedy=remedy)
