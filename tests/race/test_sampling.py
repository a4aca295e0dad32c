"""Asking a pair for its samples: faithful, faulty, without drafts, and failing."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.race import lossless
from app.race.endpoint import parse_endpoint
from app.race.lane import LaneServer
from app.race.lossless import Lossless
from app.race.sampling import PROBES, check_lossless
from app.race.types import LaneName
from app.race.upstream import Timeouts, Upstream
from tests.fakes.script import Reply
from tests.fakes.vllm import DONE, ERR, ROLE, TOK, USE, FakeVLLM, Metrics, Move, Seen, Tok
from tests.race.helpers import exactly

N = 40
FEW = PROBES[:2]
Lanes = dict[LaneName, LaneServer]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few relabellings as the correction allows: seconds less."""
    monkeypatch.setattr(lossless, "RELABELLINGS", 1)


def sampler(*, per_chunk: int = 1, fault: bool = False, record: bool = True, drafts: bool = True) -> Any:
    """Tosses a coin for every token, with the request's own seed; a fault spoils all tokens after the first."""

    def answer(seen: Seen) -> Reply:
        asked = seen.json
        draw = random.Random(asked["seed"] if asked["temperature"] else 0)
        ids = [draw.choice((11, 12)) for _ in range(asked["max_tokens"])]
        if fault and asked["temperature"]:
            ids = [ids[0], *(draw.randrange(100, 200_000) for _ in ids[1:])]
        steps = [ids[:1], *(ids[at : at + per_chunk] for at in range(1, len(ids), per_chunk))]
        toks = [Tok("".join(f" {token}" for token in step), len(step), ids=tuple(step)) for step in steps]
        last = USE(spec="auto" if record and drafts else None)
        counted = [] if drafts else [Move(generated=len(ids))]
        return Reply([ROLE, *toks, *counted, Tok("", 0, finish="length"), last, DONE])

    return answer


@asynccontextmanager
async def pair(**speculative: Any) -> AsyncGenerator[tuple[Lanes, FakeVLLM, FakeVLLM]]:
    options = {"speculative": 3, "script": sampler(per_chunk=2)} | speculative
    async with FakeVLLM(script=sampler()) as base, FakeVLLM(**options) as spec:
        roots: dict[LaneName, str] = {"baseline": base.root, "speculative": spec.root}
        lanes: Lanes = {
            lane: LaneServer(lane, Upstream(parse_endpoint(lane, root), Timeouts(first_token_s=5, stall_s=5)))
            for lane, root in roots.items()
        }
        try:
            yield lanes, base, spec
        finally:
            for lane in lanes.values():
                await lane.upstream.close()


async def checked(lanes: Lanes, **rest: Any) -> Lossless:
    return await check_lossless(lanes, samples=N, probes=FEW, **rest)


async def test_a_faithful_pair_shows_no_difference() -> None:
    told: list[tuple[str, int, int]] = []
    async with pair() as (lanes, base, spec):
        result = await checked(lanes, progress=lambda *seen: told.append(seen))
    assert result.verdict == "no_difference", result
    assert (result.samples, result.unit) == (2 * N, "token")
    assert result.greedy is not None
    assert (result.greedy.identical, result.greedy.answers) == (2, 2)
    # eight tokens: one alone, three steps of two (one accepted each), and a last one that accepted none
    assert result.drafts is not None
    assert (result.drafts.steps, result.drafts.accepted) == (2 * N * 4, 2 * N * 3)
    assert result.drafts.acceptance_rate == exactly(0.25)
    assert result.drafts.decided == exactly(7 / 8)
    assert result.seconds is not None
    for lane in ("baseline", "speculative"):
        assert [seen for seen in told if seen[0] == lane][-1] == (lane, 2 * N, 2 * N)
    assert base.max_streaming <= 8
    assert spec.max_streaming <= 8


async def test_what_is_asked_for() -> None:
    async with pair() as (lanes, base, spec):
        await checked(lanes)
    bodies = [[post.json for post in fake.posts if post.json["temperature"] > 0] for fake in (base, spec)]
    seeds = [{body["seed"] for body in asked} for asked in bodies]
    assert [len(own) for own in seeds] == [2 * N, 2 * N]  # every sample has a seed of its own
    assert seeds[0].isdisjoint(seeds[1])  # or the samples would not be independent
    for probe in FEW:
        asked = [body for body in bodies[0] if body["messages"][0]["content"] == probe.prompt]
        assert {(body["temperature"], body["top_p"], body["max_tokens"]) for body in asked} == {
            (probe.temperature, probe.top_p, 8)
        }


async def test_a_planted_fault_is_found() -> None:
    async with pair(script=sampler(fault=True)) as (lanes, _, _):
        result = await checked(lanes)
    assert result.verdict == "difference"
    assert {one.token for one in result.worst} <= {2, 3, 4, 5, 6, 7, 8, None}  # the first token has no draft
    assert result.greedy is not None
    assert result.greedy.identical == 2  # greedy answers do not show this fault
    assert result.drafts is not None
    assert result.drafts.acceptance_rate == 0.0


async def test_counters_tell_of_drafts_where_the_answers_do_not() -> None:
    async with pair(script=sampler(per_chunk=2, record=False), metrics=Metrics(lag_s=0.05)) as (lanes, _, _):
        result = await checked(lanes)
    assert result.verdict == "no_difference", result
    assert result.drafts is not None
    assert (result.drafts.steps, result.drafts.accepted) == (2 * N * 4, 2 * N * 3)


async def test_a_server_that_drafts_nothing_is_not_called_lossless() -> None:
    async with pair(script=sampler(drafts=False), metrics=Metrics(auto=False)) as (lanes, _, _):
        result = await checked(lanes)
    assert (result.verdict, result.reason) == ("untested", "no drafts ran: nothing was tested")


async def test_a_server_without_speculation_is_not_sampled() -> None:
    async with pair(speculative=None) as (lanes, base, spec):
        result = await checked(lanes)
    assert (result.verdict, result.reason) == ("untested", "the speculative server does not speculate")
    assert not base.posts
    assert not spec.posts


async def test_a_server_that_is_down_is_named() -> None:
    async with pair() as (lanes, base, _):
        await base.stop()
        result = await checked(lanes)
    assert result.verdict == "untested"
    assert result.reason is not None
    assert result.reason.startswith("baseline: Nothing listens")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Reply([ROLE, TOK(" 11"), ERR()]), "EngineCore encountered an issue"),
        (Reply.error(500, "boom", "InternalServerError"), "boom"),
    ],
)
async def test_a_server_that_fails_in_the_middle_ends_the_check(answer: Reply, words: str) -> None:
    fine = sampler(per_chunk=2)

    def failing(seen: Seen) -> Reply:
        broken = seen.json["temperature"] > 0 and seen.json["seed"] % 10 == 9
        return answer if broken else fine(seen)

    async with pair(script=failing) as (lanes, base, _):
        result = await checked(lanes)
        assert base.streaming == 0
    assert result.verdict == "untested"
    assert result.reason is not None
    assert "speculative server failed" in result.reason
    assert words in result.reason
