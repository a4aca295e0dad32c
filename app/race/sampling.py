"""Asks both servers for what app.race.lossless compares: short sampled answers, many of them, and a few greedy ones.

The probes repeat themselves, so that every drafting method proposes something, and leave the next token open, so that a
wrong acceptance shows. The servers get different seeds: the test assumes independent samples, and equal seeds are not
expected to give equal text anyway.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import anyio
from msgspec import Struct, structs

from app.race import growth
from app.race.clock import MonotonicNs, monotonic_ns, ms_between
from app.race.counters import Counters
from app.race.failures import UpstreamError
from app.race.lane import PROBE_S, LaneServer
from app.race.lossless import Lossless, Sample, compare_greedy, judge
from app.race.types import LANES, Chunk, LaneName, RaceSpec, Sampling, SpecRecord

SAMPLES = 200
"""Answers per probe and server."""
AT_ONCE = 8
"""Requests in flight at one server: a batch costs a small engine little more than one answer."""
TOKENS = 8
GREEDY_TOKENS = 48
SETTLE_S = 2.0
"""How long the counters may lag the answers (P17)."""
OTHER_SEEDS = 1_000_000_000

Progress = Callable[[LaneName, int, int], None]
"""Called with a lane, how many of its answers have come, and how many will have."""
Answers = dict[str, list[Sample]]


class Probe(Struct, frozen=True, kw_only=True):
    """A prompt for sampled answers. ``top_p`` below 1 goes another way through the sampler than 1."""

    name: str
    prompt: str
    temperature: float = 1.0
    top_p: float = 1.0


PROBES = (
    Probe(name="coin", prompt="heads tails tails heads tails heads heads tails tails heads heads"),
    Probe(name="dice", prompt="4, 1, 6, 2, 4, 5, 1, 6, 3, 2, 4, 1, 5, 6, 2,", temperature=0.8, top_p=0.95),
    Probe(name="cities", prompt="Rome, Oslo, Paris, Oslo, Rome, Paris, Rome, Paris, Oslo, Rome, Oslo,"),
)


async def check_lossless(
    lanes: Mapping[LaneName, LaneServer],
    *,
    samples: int = SAMPLES,
    probes: Sequence[Probe] = PROBES,
    progress: Progress | None = None,
    clock: MonotonicNs = monotonic_ns,
) -> Lossless:
    """Sample both servers, at the same time, and judge. Takes minutes on a small engine.

    Never raises for what a server does or does not do: then nothing was tested, and the result says why.
    """
    began = clock()
    for lane in LANES:
        state = await lanes[lane].probe()
        if state.status != "ready":
            return _untested(f"{lane}: {state.detail or 'the server is not ready'}")
    speculative = lanes["speculative"]
    if speculative.speculating is False:
        return _untested("the speculative server does not speculate")
    try:
        before = await speculative.counters(PROBE_S)
        found = await _both(lanes, partial(_sampled, probes=probes, samples=samples, progress=progress))
        counted = _of_requests(found["speculative"]) or await _of_counters(speculative, before, found["speculative"])
        greedy = await _both(lanes, partial(_greedy, probes=probes))
    except UpstreamError as error:
        return _untested(error.error.message)
    equal = compare_greedy(*({name: only[0] for name, only in greedy[lane].items()} for lane in LANES))
    # seconds of computing: not on the loop
    work = partial(judge, found["baseline"], found["speculative"], counted=counted, greedy=equal)
    result = await anyio.to_thread.run_sync(work)
    return structs.replace(result, seconds=ms_between(began, clock()) / 1000)


def _untested(reason: str) -> Lossless:
    return Lossless(verdict="untested", samples=0, reason=reason)


async def _both(
    lanes: Mapping[LaneName, LaneServer], ask: Callable[[LaneServer], Awaitable[Answers]]
) -> dict[LaneName, Answers]:
    """What ``ask`` gets from either server, both at the same time.

    Raises:
        UpstreamError: of the server that failed first; the other one's requests are dropped. Its lane is named.
    """
    got: dict[LaneName, Answers] = {}
    failed: list[UpstreamError] = []
    async with anyio.create_task_group() as group:

        async def one(lane: LaneName) -> None:
            try:
                got[lane] = await ask(lanes[lane])
            except UpstreamError as error:
                failed.append(UpstreamError(error.error.kind, f"The {lane} server failed: {error.raw}"))
                group.cancel_scope.cancel()

        for lane in LANES:
            group.start_soon(one, lane)
    if failed:
        raise failed[0]
    return got


async def _greedy(server: LaneServer, *, probes: Sequence[Probe]) -> Answers:
    """One answer a probe at temperature 0, one after the other: another batch is another rounding."""
    model = await server.model()
    answers: Answers = {}
    for probe in probes:
        sampling = Sampling(temperature=0.0, top_p=1.0, seed=0, max_tokens=GREEDY_TOKENS, ignore_eos=True)
        answers[probe.name] = [await _answer(server, model, probe, sampling)]
    return answers


async def _sampled(server: LaneServer, *, probes: Sequence[Probe], samples: int, progress: Progress | None) -> Answers:
    """``samples`` answers a probe, several in flight."""
    model = await server.model()
    answers: Answers = {probe.name: [] for probe in probes}
    offset = OTHER_SEEDS if server.lane == "speculative" else 0
    jobs = iter([(probe, offset + at * samples + i) for at, probe in enumerate(probes) for i in range(samples)])
    done = 0

    async def work() -> None:
        nonlocal done
        for probe, seed in jobs:
            sampling = Sampling(
                temperature=probe.temperature, top_p=probe.top_p, seed=seed, max_tokens=TOKENS, ignore_eos=True
            )
            answers[probe.name].append(await _answer(server, model, probe, sampling))
            done += 1
            if progress is not None:
                progress(server.lane, done, samples * len(probes))

    try:
        async with anyio.create_task_group() as group:
            for _ in range(AT_ONCE):
                group.start_soon(work)
    except* UpstreamError as several:
        raise _first(several) from None
    return answers


def _first(group: BaseExceptionGroup[UpstreamError]) -> UpstreamError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _answer(server: LaneServer, model: str, probe: Probe, sampling: Sampling) -> Sample:
    """One answer.

    Raises:
        UpstreamError: it did not come, or not to its end.
    """
    spec = RaceSpec(workload=None, prompt=probe.prompt, system=None, sampling=sampling, schedule="together")
    chunks: list[Chunk] = []
    await server.run(spec, model, lambda _at, _again: None, chunks.append)
    brought = [chunk for chunk in chunks if chunk.text or chunk.reasoning or chunk.token_ids]
    ids = [chunk.token_ids for chunk in brought]
    whole = None if any(one is None for one in ids) else tuple(token for one in ids for token in one or ())
    alone = [(chunk.token_ids[0], chunk.text) for chunk in brought if chunk.token_ids and len(chunk.token_ids) == 1]
    return Sample(
        text="".join(chunk.reasoning + chunk.text for chunk in brought),
        ids=whole,
        texts=tuple(alone),
        record=next((chunk.spec for chunk in chunks if chunk.spec is not None), None),
    )


def _of_requests(answers: Answers) -> SpecRecord | None:
    """Drafts as the server counted them with each answer, added up; None when it counts none that way."""
    records = [answer.record for group in answers.values() for answer in group if answer.record is not None]
    if not records:
        return None
    steps = [record.drafts for record in records]
    return SpecRecord(
        source="request",
        drafts=None if None in steps else sum(count for count in steps if count is not None),
        drafted=sum(record.drafted for record in records),
        accepted=sum(record.accepted for record in records),
    )


async def _of_counters(server: LaneServer, before: Counters | None, answers: Answers) -> SpecRecord | None:
    """Drafts as growth of the server's counters; None when it has none that can be read."""
    if before is None:
        return None
    tokens = sum(len(answer.ids or ()) for group in answers.values() for answer in group) or None
    k, seen = server.identity.num_speculative_tokens, None
    with anyio.move_on_after(SETTLE_S + PROBE_S):
        while (after := await server.counters(PROBE_S)) is not None:
            last, seen = seen, growth.growth(before, after)
            if seen is None or growth.settled(seen, last, tokens, k):
                break
            await anyio.sleep(0.4)
    return growth.record(seen, tokens, k) if seen else None
