"""How close two tokens were: the question, its answer, and that a race never suffers from asking."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
import structlog
from msgspec import structs

from app.race import race as racing
from app.race.candidates import question, rated
from app.race.endpoint import parse_endpoint
from app.race.events import Event, RaceFinished, RaceMargin
from app.race.lane import LaneServer
from app.race.race import Race
from app.race.types import Candidate, Chunk, RaceStatus
from app.race.upstream import Timeouts, Upstream
from tests.fakes.script import Reply
from tests.fakes.vllm import FakeVLLM, refused_port
from tests.race.helpers import FIN, FakeRunner, spec, total
from tests.race.test_race import Sink

pytestmark = pytest.mark.anyio
BOTH = (Candidate(token_id=7, logprob=-0.7), Candidate(token_id=8, logprob=-0.7))


def answered(top: Any) -> bytes:
    return json.dumps({"choices": [{"text": "x", "logprobs": {"top_logprobs": top}}]}).encode()


def test_the_question_is_one_token_after_the_ids_so_far() -> None:
    asked = question("m", [2, 10, 11], (7, 8))
    assert (asked["model"], asked["prompt"], asked["max_tokens"], asked["temperature"]) == ("m", [2, 10, 11], 1, 0)
    assert (asked["logprobs"], asked["logprob_token_ids"], asked["return_tokens_as_token_ids"]) == (5, [7, 8], True)


def test_the_two_tokens_are_found_by_id() -> None:
    top = [{"token_id:9": -0.1, "token_id:8": -2.5, "token_id:7": -2.25}]
    assert rated(answered(top), (7, 8)) == (
        Candidate(token_id=7, logprob=-2.25),
        Candidate(token_id=8, logprob=-2.5),
    )


def test_a_token_that_is_not_listed_has_no_log_probability() -> None:
    found = rated(answered([{"token_id:7": -0.1, "token_id:70": -3.0}]), (7, 8))
    assert found == (Candidate(token_id=7, logprob=-0.1), Candidate(token_id=8))


@pytest.mark.parametrize(
    "body",
    [
        answered([{" cat": -0.1, " cats": -0.1}]),  # tokens by text: which id is meant is not known
        answered([]),
        answered([None]),
        answered(None),
        answered([{"token_id:7": "much"}]),
        b'{"choices": []}',
        b'{"choices": [{"text": "x", "logprobs": null}]}',
        b'{"error": {"message": "no"}}',
        b"<html>",
        b"",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_an_answer_that_says_nothing_of_them_is_none(body: bytes) -> None:
    assert rated(body, (7, 8)) is None


# ---------------------------------------------------------------------------------------- the lane's server
async def rate(
    url: str, timeout_s: float = 2.0, version: str | None = "0.32.0", **rest: Any
) -> tuple[tuple[Candidate, ...] | None, LaneServer]:
    lane = LaneServer("baseline", Upstream(parse_endpoint("F", url, model="m", **rest), Timeouts(connect_s=0.5)))
    lane.state = structs.replace(lane.state, version=version)
    try:
        return await lane.rate([2, 10], (7, 8), timeout_s), lane
    finally:
        await lane.upstream.close()


async def test_a_server_is_asked_once_with_its_key() -> None:
    async with FakeVLLM(api_key="k", ratings={7: -0.7, 8: -0.7, 9: -3.0}) as fake:
        found, _ = await rate(fake.url, api_key="k")
        assert found == BOTH
        assert (fake.posts, [seen.path for seen in fake.rated]) == ([], ["/v1/completions"])
        assert fake.rated[0].json == question("m", [2, 10], (7, 8))


async def test_a_server_that_does_not_say_that_it_is_vllm_is_sent_nothing_but_the_race() -> None:
    async with FakeVLLM(ratings={7: -0.7, 8: -0.7}) as fake:
        found, lane = await rate(fake.url, version=None)
        await lane.speller.ask([7, 8], "m")
        assert (found, lane.state.warm, fake.requests) == (None, None, [])


async def test_a_server_that_lists_its_best_tokens_tells_what_is_among_them() -> None:
    ratings = {7: -0.7, 1: -1.0, 2: -1.5, 3: -2.0, 4: -2.5, 8: -9.0}
    async with FakeVLLM(ratings=ratings, names_ratings=False) as fake:
        assert (await rate(fake.url))[0] == (Candidate(token_id=7, logprob=-0.7), Candidate(token_id=8))


async def test_a_server_that_gives_no_log_probabilities_leaves_a_gap() -> None:
    async with FakeVLLM() as fake:
        assert (await rate(fake.url))[0] is None
        fake.everything = Reply(status=500, body=b"Internal Server Error")
        assert (await rate(fake.url))[0] is None
    with refused_port() as port:
        assert (await rate(f"http://127.0.0.1:{port}"))[0] is None


async def test_a_server_that_was_left_in_the_middle_of_it_is_not_warm() -> None:
    """The first such request compiles kernels; the next race would wait for them."""
    async with FakeVLLM(ratings={7: -0.7, 8: -0.7}) as fake:
        fake.everything = Reply(headers_after_s=float("inf"))
        found, lane = await rate(fake.url, timeout_s=0.05)
        assert (found, lane.warm, lane.state.warm) == (None, False, False)


# ---------------------------------------------------------------------------------------- the race
def said(*ids: int, prompt: tuple[int, ...] | None = None) -> Chunk:
    return Chunk(at_ns=0, text="x" * len(ids), tokens=len(ids), token_ids=ids, prompt_token_ids=prompt)


ASKED = (2, 10)
BASE = (said(5, prompt=ASKED), said(6), said(7), FIN, total(3))
SPEC = (said(5, 6, 8, prompt=ASKED), FIN, total(3))


async def raced(base: FakeRunner, fast: FakeRunner, *, in_flight: int = 1, **rest: Any) -> tuple[RaceStatus, Sink]:
    sink = Sink()
    race = Race(spec(**rest), {"baseline": base, "speculative": fast}, sink, epoch_ns=base.clock())
    with anyio.fail_after(5):
        return await race.run(queue_ms=0, in_flight=in_flight), sink


def margins(events: list[Event]) -> list[RaceMargin]:
    return [event for event in events if isinstance(event, RaceMargin)]


async def test_where_greedy_answers_part_the_baseline_is_asked_what_it_thinks_of_both() -> None:
    base, fast = FakeRunner(*BASE), FakeRunner(*SPEC)
    base.rating = BOTH
    status, sink = await raced(base, fast)
    assert (status, base.rated, fast.rated) == ("finished", [([2, 10, 5, 6], (7, 8), racing.RATE_S)], [])
    (found,) = margins(sink.events)
    assert (found.index, found.baseline, found.speculative) == (2, *BOTH)
    assert isinstance(sink.events[-1], RaceFinished)
    assert sink.board.same_text(greedy=True).divergence.margin.difference == 0  # type: ignore[union-attr]


async def test_the_question_counts_in_no_figure() -> None:
    with_it, without = FakeRunner(*BASE), FakeRunner(*BASE)
    with_it.rating = BOTH
    races = [await raced(base, FakeRunner(*SPEC)) for base in (with_it, without)]
    kinds = [[type(event).__name__ for event in sink.events] for _, sink in races]
    assert [kind for kind in kinds[0] if kind != "RaceMargin"] == kinds[1]
    assert kinds[0].index("RaceMargin") > max(i for i, kind in enumerate(kinds[0]) if kind == "LaneFinished")


@pytest.mark.parametrize(
    ("base", "fast"),
    [
        (BASE, BASE),  # the same text
        (BASE, (said(5, 6), FIN, total(2))),  # one has no token there
        ((said(5), said(7), FIN, total(2)), SPEC),  # the prompt's ids are not known
        ((Chunk(at_ns=0, text="ab", tokens=1, prompt_token_ids=ASKED), FIN), SPEC),  # no token ids
    ],
)
async def test_nobody_is_asked_where_there_is_no_question(base: Any, fast: Any) -> None:
    runner = FakeRunner(*base)
    runner.rating = BOTH
    status, sink = await raced(runner, FakeRunner(*fast))
    assert (status, runner.rated, margins(sink.events)) == ("finished", [], [])


async def test_nobody_is_asked_while_another_race_is_on_the_pair() -> None:
    base = FakeRunner(*BASE)
    base.rating = BOTH
    _, sink = await raced(base, FakeRunner(*SPEC), in_flight=2)
    assert (base.rated, margins(sink.events)) == ([], [])


@pytest.mark.parametrize("trouble", [None, ValueError("a fault of ours")])
async def test_a_question_without_an_answer_is_a_gap_and_no_error_of_the_lane(trouble: Any) -> None:
    base = FakeRunner(*BASE)
    base.rating = trouble
    with structlog.testing.capture_logs() as logged:
        status, sink = await raced(base, FakeRunner(*SPEC))
    assert (status, len(base.rated), margins(sink.events)) == ("finished", 1, [])
    assert sink.board.lanes["baseline"].error is None
    assert len(logged) == (trouble is not None)


async def test_stop_does_not_wait_for_the_answer() -> None:
    base, sink = FakeRunner(*BASE), Sink()
    base.rating = 60.0
    race = Race(spec(), {"baseline": base, "speculative": FakeRunner(*SPEC)}, sink, epoch_ns=base.clock())
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: race.run(queue_ms=0, in_flight=1))
            while not base.rated:  # noqa: ASYNC110 - what is waited for sets no event
                await anyio.sleep(0.005)
            race.stop()
    assert sink.events[-1] == RaceFinished(t_ms=sink.events[-1].t_ms, status="finished")
