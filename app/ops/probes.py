"""Asks one server what can be asked from outside: GETs first, then a handful of short answers. Never raises.

Every request that generates is short and counts nowhere. They also warm the server up.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

import anyio
import httpx2
from msgspec import structs

from app.ops.observed import (
    Answer,
    Defaults,
    Facts,
    exposed_in,
    info_in,
    json_of,
    part,
    served_in,
)
from app.race.clock import monotonic_ns, ms_between
from app.race.failures import UpstreamError
from app.race.lane import LaneServer
from app.race.types import Chunk, LaneError, RaceSpec, Sampling
from app.race.workloads import Workload

GET_S = 4.0
ANSWER_S = 60.0
"""How long an answer of a few tokens may take: a cold engine compiles before its first one."""
GETS = 5

PROBE_TEXT = (
    "Hello, naïve world. Привет, мир! 你好，世界。 こんにちは ﷺ मेरा 🫠👩\u200d🚀 "
    '{"k": [1, 2.50, null]}\n\tif x != 0:\r\n  ok  '
)
"""Several scripts, emoji, code and odd spaces: two tokenizers that agree on it are the same for any prompt shown."""

NEUTRAL: dict[str, float] = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Values that change nothing; races leave these fields out, so that a server's own defaults apply."""
_TALE = (
    "The ship left the harbour in the morning, and the crew of the ship counted the boats in the harbour. "
    "The keeper of the light counted the boats, and the crew"
)
# Penalties show best at temperature 1, cut-offs (top_k, min_p) at 2, where rare tokens would be drawn.
_TRIALS: tuple[tuple[float, int], ...] = ((1.0, 24), (2.0, 16))


async def look(lane: LaneServer, workloads: Iterable[Workload]) -> Facts:
    """Everything that GETs and the tokenizer tell; nothing is generated."""
    facts = Facts(state=await lane.probe(), with_key=lane.upstream.endpoint.api_key is not None)
    if facts.error is not None:
        return facts
    latencies: list[float] = []
    listed: httpx2.Response | None = None
    for _ in range(GETS):
        began = monotonic_ns()
        listed = await _tried(lane.upstream.get("/v1/models", timeout_s=GET_S))
        if listed is not None and listed.status_code == 200:
            latencies.append(ms_between(began, monotonic_ns()))
    metrics = await _tried(lane.upstream.get("/metrics", timeout_s=GET_S))
    info = await _tried(lane.upstream.get("/server_info?config_format=json", timeout_s=GET_S))
    model = facts.state.identity.model
    facts = structs.replace(
        facts,
        served=served_in(listed.content, model) if listed is not None else None,
        latencies_ms=tuple(latencies),
        exposed=exposed_in(metrics.text) if metrics is not None and metrics.status_code == 200 else None,
        info=info_in(info.content) if info is not None and info.status_code == 200 else None,
    )
    return await _tokenized(lane, facts, workloads)


async def _tokenized(lane: LaneServer, facts: Facts, workloads: Iterable[Workload]) -> Facts:
    model = facts.state.identity.model
    ids = await _ids(lane, {"model": model, "prompt": PROBE_TEXT})
    if ids is None:
        return facts
    lengths: list[tuple[str, int]] = []
    for workload in workloads:
        system = [{"role": "system", "content": workload.system}] if workload.system else []
        messages = [*system, {"role": "user", "content": workload.prompt}]
        found = await _ids(lane, {"model": model, "messages": messages}) or await _ids(
            lane, {"model": model, "prompt": f"{workload.system}\n\n{workload.prompt}" if system else workload.prompt}
        )
        if found is not None:
            lengths.append((workload.name, len(found)))
    return structs.replace(facts, probe_ids=ids, ids_from="/tokenize", lengths=tuple(lengths))


async def _ids(lane: LaneServer, body: dict[str, Any]) -> tuple[int, ...] | None:
    answer = await _tried(lane.upstream.post("/tokenize", body, timeout_s=GET_S))
    return None if answer is None or answer.status_code != 200 else _whole(json_of(answer.content).get("tokens"))


def _whole(found: object) -> tuple[int, ...] | None:
    """A list of token ids, None when it is none."""
    listed = cast("list[object]", found) if isinstance(found, list) else []
    ids = tuple(n for n in listed if isinstance(n, int) and not isinstance(n, bool))
    return ids if ids and len(ids) == len(listed) else None


async def listen(lane: LaneServer, facts: Facts) -> Facts:
    """What short answers tell on top of ``look``; the first that fails is the last."""
    if facts.error is not None:
        return facts
    answer = await _answers(lane)
    facts = structs.replace(facts, answer=answer)
    if answer.error is not None:
        return facts
    if facts.probe_ids is None:
        ids = await _prompt_ids(lane, facts.state.identity.model)
        facts = structs.replace(facts, probe_ids=ids, ids_from=None if ids is None else "prompt_token_ids")
    return structs.replace(facts, defaults=await _defaults(lane, facts.state.identity.model))


async def _answers(lane: LaneServer) -> Answer:
    """The same request twice, through the very code that a race uses; a fresh number in front keeps an earlier check's
    prompt out of the prefix cache. It is longer than two cache blocks of 128 tokens."""
    prompt = f"{secrets.randbelow(10**9)} " + " ".join(
        f"Entry {n}: all is well, {n} boats came home." for n in range(20)
    )
    spec = RaceSpec(
        workload=None,
        prompt=prompt,
        system=None,
        sampling=Sampling(temperature=0.0, top_p=1.0, seed=0, max_tokens=16, ignore_eos=True),
        schedule="in_turn",
    )
    seen: list[Chunk] = []
    times: list[float | None] = []
    for _ in range(2):
        seen.clear()
        ttft_ms, error = await _one(lane, spec, seen)
        times.append(ttft_ms)
        if error is not None:
            return Answer(error=error, first_ttft_ms=times[0])
    return _read(seen, chat=lane.upstream.dialect.chat, times=times)


async def _one(lane: LaneServer, spec: RaceSpec, seen: list[Chunk]) -> tuple[float | None, LaneError | None]:
    """One streamed answer into ``seen``: its TTFT, and why it failed."""
    sent: list[int] = []
    try:
        with anyio.fail_after(ANSWER_S):
            await lane.run(spec, await lane.model(), lambda at, _: sent.append(at), seen.append)
    except TimeoutError:
        return None, UpstreamError("first_token_timeout", f"No answer of 16 tokens within {ANSWER_S:g} s").error
    except UpstreamError as failure:
        return None, failure.error
    first = next((chunk for chunk in seen if _brings(chunk)), None)
    if first is None or not sent:
        return None, UpstreamError("bad_stream", "The answer held no text").error
    return ms_between(sent[-1], first.at_ns), None


def _brings(chunk: Chunk) -> bool:
    return bool(chunk.text or chunk.reasoning or chunk.token_ids or chunk.tool_call)


def _read(seen: list[Chunk], *, chat: bool, times: list[float | None]) -> Answer:
    """What the chunks of an answer say about the server."""
    usages = [chunk.usage for chunk in seen if chunk.usage is not None]
    record = next((chunk.spec for chunk in reversed(seen) if chunk.spec is not None), None)
    told = next((usage.cached_tokens for usage in reversed(usages) if usage.cached_tokens is not None), None)
    return Answer(
        chat=chat,
        token_ids=any(chunk.token_ids for chunk in seen),
        final_usage=any(usage.completion_tokens is not None for usage in usages),
        running_usage=any(chunk.usage is not None and _brings(chunk) and not chunk.finish_reason for chunk in seen),
        cached_again=told,
        record=None if record is None else "detailed" if record.per_step_accepted is not None else "summary",
        prompt_tokens=next((usage.prompt_tokens for usage in reversed(usages) if usage.prompt_tokens), None),
        first_ttft_ms=times[0],
        again_ttft_ms=times[1],
    )


async def _prompt_ids(lane: LaneServer, model: str | None) -> tuple[int, ...] | None:
    """The probe text's ids from a server without /tokenize that gives a prompt's ids back."""
    body = {"model": model, "prompt": PROBE_TEXT, "max_tokens": 1, "temperature": 0.0, "return_token_ids": True}
    answer = await _tried(lane.upstream.post("/v1/completions", body, timeout_s=ANSWER_S))
    choice = _choice(answer)
    return _whole(choice.get("prompt_token_ids")) if choice else None


def _choice(answer: httpx2.Response | None) -> dict[str, Any] | None:
    if answer is None or answer.status_code != 200:
        return None
    listed = json_of(answer.content).get("choices")
    choices = cast("list[Any]", listed) if isinstance(listed, list) else []
    return part({"choice": choices[0]}, "choice") if choices else None


async def _defaults(lane: LaneServer, model: str | None) -> Defaults:
    """Ask for seeded samples with and without neutral values: equal seeds on one server give equal text, unless the
    server has defaults of its own for what was left out."""
    for temperature, tokens in _TRIALS:
        plain = {"model": model, "prompt": _TALE, "max_tokens": tokens, "seed": 0, "top_p": 1.0, "ignore_eos": True}
        plain["temperature"] = temperature

        async def said(more: dict[str, float], body: dict[str, Any] = plain) -> str | None:
            answer = await _tried(lane.upstream.post("/v1/completions", body | more, timeout_s=ANSWER_S))
            choice = _choice(answer)
            text = choice.get("text") if choice else None
            return text if isinstance(text, str) else None

        without, neutral = await said({}), await said(NEUTRAL)
        if without is None or neutral is None:
            return Defaults(status="refused")
        if without == neutral:
            continue
        if await said({}) != without or await said(NEUTRAL) != neutral:
            return Defaults(status="not repeatable")
        return Defaults(status="differ", names=await _named(said, without))
    return Defaults(status="neutral")


async def _named(said: Callable[[dict[str, float]], Awaitable[str | None]], without: str) -> tuple[str, ...]:
    """The parameters whose neutral value changes the answer by itself."""
    return tuple([name for name, value in NEUTRAL.items() if await said({name: value}) not in (None, without)])


async def _tried(asking: Awaitable[httpx2.Response]) -> httpx2.Response | None:
    try:
        return await asking
    except UpstreamError:
        return None
