"""What the facts about one server mean for a show: findings with their remedies. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from app.ops.findings import Finding, Level
from app.ops.observed import Facts
from app.race.failures import REMEDY
from app.race.workloads import Workload

SLOW_TTFT_MS = 5000.0
COLD_TIMES = 3.0
"""The first answer counts as cold when it took this many times as long as the second, and a second longer."""
DRAFT_FLAG = """--speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'"""


def lane_findings(facts: Facts, workloads: list[Workload]) -> Iterator[Finding]:
    """Everything about one server, in the order in which it matters."""
    yield reachable(facts)
    if facts.state.error is not None:
        return
    yield from speculating(facts)
    yield from answering(facts)
    if facts.answer is not None and facts.answer.error is None:
        yield from reporting(facts)
    yield from room(facts, workloads)
    yield from traffic(facts)


def _finding(facts: Facts, key: str, level: Level, title: str, detail: str, *remedy: str) -> Finding:
    """``remedy`` is a sentence, and the code that it speaks of."""
    sentence, code = (*remedy, None, None)[:2]
    return Finding(key=key, lane=facts.state.lane, level=level, title=title, detail=detail, remedy=sentence, code=code)


def reachable(facts: Facts) -> Finding:
    """Whether the server answers at all, and with which model."""
    state = facts.state
    if state.error is not None:
        remedy = REMEDY[state.error.kind]
        detail = state.error.message.removesuffix(remedy).strip()
        code = f"SPECRACE_{state.lane.upper()}_API_KEY" if state.error.kind == "unauthorized" else None
        return _finding(facts, state.error.kind, "problem", "Reachable", detail, remedy, *([code] if code else []))
    latency = f", in {median(facts.latencies_ms):.1f} ms (median of {len(facts.latencies_ms)})"
    detail = f"{facts.kind} answers{latency if facts.latencies_ms else ''}; model {state.identity.model}"
    detail += "; key accepted" if facts.with_key else ""
    return _finding(facts, "reachable", "ok", "Reachable", detail)


def speculating(facts: Facts) -> Iterator[Finding]:
    """Speculation on at the one server and off at the other, as far as the server shows it."""
    title, should = "Speculation", facts.state.lane == "speculative"
    told = _told(facts)
    if told is None:
        where = "its /metrics cannot be read" if facts.is_vllm else f"n/a here: {facts.kind} does not show it to us"
        yield _finding(facts, "speculation", "note", title, where, *_metrics_remedy(facts))
        return
    if told and not should:
        k = facts.state.identity.num_speculative_tokens
        detail = f"on{f' (k = {k})' if k else ''}, though this is the baseline"
        remedy = "Start the baseline without this flag, or swap the two addresses"
        yield _finding(facts, "speculation", "problem", title, detail, remedy, "--speculative-config")
        return
    if not told and should:
        yield _finding(facts, "speculation", "problem", title, "off", "Start this server with", DRAFT_FLAG)
        return
    if not should:
        yield _finding(facts, "speculation", "ok", title, "off, as it should be")
        return
    yield _method(facts)


def _told(facts: Facts) -> bool | None:
    """Whether the server speculates. A record in its answer outranks counters that are not there."""
    return True if facts.answer is not None and facts.answer.record is not None else facts.state.speculating


def method_of(facts: Facts) -> str | None:
    """How the server drafts, None where that is not known."""
    told = facts.state.identity.method
    return (facts.info.method if facts.info else None) or (None if told == "unknown" else told)


def _method(facts: Facts) -> Finding:
    k = facts.state.identity.num_speculative_tokens
    tokens = "k not told" if k is None else f"k = {k}"
    method = method_of(facts)
    if method is not None:
        return _finding(facts, "speculation", "ok", "Speculation", f"on: {method}, {tokens}")
    return _finding(
        facts,
        "speculation",
        "note",
        "Speculation",
        f"on, {tokens}; the method is not told",
        "Look for SpeculativeConfig in its boot log; of a pair that this starts it is known:",
        "specrace up",
    )


def _metrics_remedy(facts: Facts) -> tuple[str, ...]:
    if not facts.is_vllm:
        return ()
    return ("Let this app read /metrics, or name where it is", f"SPECRACE_{facts.state.lane.upper()}_METRICS_URL")


def answering(facts: Facts) -> Iterator[Finding]:
    """Whether short answers come, and how fast the first token is."""
    answer = facts.answer
    if answer is None:
        return
    if answer.error is not None:
        remedy = REMEDY[answer.error.kind]
        detail = answer.error.message.removesuffix(remedy).strip()
        yield _finding(facts, answer.error.kind, "problem", "Answers", detail, remedy)
        return
    first, again = answer.first_ttft_ms, answer.again_ttft_ms
    if first is None or again is None:
        return
    detail = f"TTFT {again:.0f} ms for {answer.prompt_tokens or 'about 300'} prompt tokens"
    if again > SLOW_TTFT_MS:
        remedy = "Nobody on stage waits that long: look for other load on this server, or use shorter prompts"
        yield _finding(facts, "answers", "warning", "Answers", detail, remedy)
    elif first > COLD_TIMES * again and first - again > 1000:
        detail = f"{detail}; the first after its start took {first / 1000:.1f} s. It is warm now"
        yield _finding(facts, "answers", "note", "Answers", detail)
    else:
        yield _finding(facts, "answers", "ok", "Answers", detail)
    if not answer.chat:
        detail = "the model has no chat template: prompts go out as plain completions"
        yield _finding(
            facts, "chat_template", "note", "Chat template", detail, "For a chat model, add", "--chat-template"
        )


def reporting(facts: Facts) -> Iterator[Finding]:
    """What the server counts and tells with each answer."""
    yield from _record(facts)
    yield _counts(facts)
    yield _cached(facts)


def _record(facts: Facts) -> Iterator[Finding]:
    answer, title = facts.answer, "Draft record"
    if answer is None or facts.state.lane == "baseline" or _told(facts) is False:
        return
    flag = "--per-request-spec-decode-metrics detailed"
    if answer.record == "detailed":
        yield _finding(facts, "spec_record", "ok", title, "sent with each answer, step by step")
    elif answer.record == "summary":
        # also what a detailed server sends when nothing was drafted
        detail = "sent with each answer; steps not listed here"
        remedy = "For drafted tokens marked exactly, start this server with"
        yield _finding(facts, "spec_record", "note", title, detail, remedy, flag)
    elif not facts.is_vllm:
        yield _finding(facts, "spec_record", "note", title, f"n/a here: {facts.kind} sent none with its answer")
    elif facts.state.speculating:
        detail = "none: acceptance comes from server-wide counters, which other traffic blurs"
        yield _finding(
            facts, "spec_record", "warning", title, detail, "Start this server (vLLM 0.28 or newer) with", flag
        )
    else:
        detail = "none, and no counters: acceptance will be n/a"
        yield _finding(
            facts, "spec_record", "warning", title, detail, "Start this server (vLLM 0.28 or newer) with", flag
        )


def _counts(facts: Facts) -> Finding:
    """Token ids, running usage, final usage: one exact way to count is enough, none is a problem."""
    answer = facts.answer
    ids, running, final = (answer.token_ids, answer.running_usage, answer.final_usage) if answer else (False,) * 3
    ways = [name for name, there in (("token ids", ids), ("running usage", running), ("final usage", final)) if there]
    missing = [
        name
        for name, there in (("return_token_ids", ids), ("continuous_usage_stats", running), ("include_usage", final))
        if not there
    ]
    title = "Token counts"
    if not ways:
        detail = "none: tokens would be guessed, and no ratio is printed from guesses"
        remedy = "Let the server, and any gateway before it, honour"
        return _finding(
            facts, "token_counts", "problem", title, detail, remedy, 'stream_options {"include_usage": true}'
        )
    if ids and final:
        return _finding(facts, "token_counts", "ok", title, f"exact: {', '.join(ways)}")
    live = "exact while it runs" if ids else "from usage while it runs" if running else "only known at the end"
    detail = f"{live} ({', '.join(ways)}); not honoured: {', '.join(missing)}"
    remedy = "vLLM 0.10.2 or newer gives token ids; a gateway in between may drop the field" if facts.is_vllm else None
    return _finding(facts, "token_counts", "note", title, detail, *([remedy] if remedy else []))


def _cached(facts: Facts) -> Finding:
    told = facts.answer.cached_again if facts.answer else None
    if told is not None:
        return _finding(facts, "cached_tokens", "ok", "Cached tokens", "told with each answer")
    if not facts.is_vllm:
        return _finding(facts, "cached_tokens", "note", "Cached tokens", f"n/a here: {facts.kind} does not tell them")
    detail = "not told: a prompt that came from the cache cannot be seen beside a result"
    remedy = "Start this server with"
    return _finding(facts, "cached_tokens", "note", "Cached tokens", detail, remedy, "--enable-prompt-tokens-details")


def room(facts: Facts, workloads: list[Workload]) -> Iterator[Finding]:
    """Whether every ready prompt with its answer fits into the context: vLLM cuts answers short without a word."""
    limit, title = facts.state.max_model_len, "Context length"
    lengths = dict(facts.lengths)
    if limit is None:
        yield _finding(facts, "context", "note", title, "n/a here: the server does not tell its limit")
        return
    needs = {w.name: lengths[w.name] + w.max_tokens for w in workloads if w.name in lengths}
    if not needs:
        detail = f"{limit:,} tokens; the ready prompts could not be measured (no /tokenize here)"
        yield _finding(facts, "context", "note", title, detail)
        return
    refused = [w for w in workloads if w.name in lengths and lengths[w.name] >= limit]
    clipped = [w for w in workloads if w not in refused and needs.get(w.name, 0) > limit]
    remedy = "Start this server with a longer context, or shorten these prompts in deploy/workloads.toml"
    if refused:
        told = ", ".join(f"{w.name} ({lengths[w.name]:,})" for w in refused)
        detail = f"{limit:,} tokens; refused, because the prompt alone fills it: {told}"
        yield _finding(facts, "context", "problem", title, detail, remedy, f"--max-model-len {max(needs.values())}")
    if clipped:
        told = ", ".join(f"{w.name} ({lengths[w.name]:,} + {w.max_tokens:,})" for w in clipped)
        detail = f"{limit:,} tokens; answers cut short without a word: {told}"
        yield _finding(facts, "context", "warning", title, detail, remedy, f"--max-model-len {max(needs.values())}")
    if not refused and not clipped:
        most = max(needs, key=lambda name: needs[name])
        unmeasured = len(workloads) - len(needs)
        detail = f"{limit:,} tokens; the longest ready prompt with its answer needs {needs[most]:,} ({most})"
        detail += f"; {unmeasured} could not be measured" if unmeasured else ""
        yield _finding(facts, "context", "ok", title, detail)


def traffic(facts: Facts) -> Iterator[Finding]:
    """Requests that are not ours, at a moment when we had none."""
    seen = facts.exposed
    if seen is None or seen.running is None:
        return
    running, waiting = seen.running, seen.waiting or 0
    if running or waiting:
        detail = f"{running} running, {waiting} waiting, and none of them is ours"
        remedy = "Race on servers of your own: other requests slow this lane and blur its counters"
        yield _finding(facts, "other_traffic", "warning", "Other traffic", detail, remedy)
    else:
        yield _finding(facts, "other_traffic", "ok", "Other traffic", "none")
