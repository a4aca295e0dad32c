"""What a server is asked about its tokens: little, late, once, and never at the cost of a race."""

from __future__ import annotations

from typing import Any

import anyio
import httpx2
import pytest

from app.race.events import LaneChunk, LaneFinished, LaneVocabulary, RaceFinished
from app.race.failures import UpstreamError
from app.race.speller import ASK_S, LaneSpelling, Speller
from app.race.spelling import MOST_ASKED
from app.race.types import Chunk
from tests.race.helpers import FIN, FakeRunner, Memory, end_of, hub_of, spec

WORDS = {7: " government", 1: " a", 2: "b\n", 3: "\ufffd", 4: " def"}
pytestmark = pytest.mark.anyio


class Tokenizer:
    """POST /detokenize, as vLLM answers it; a leading space of the whole text is lost, as SentencePiece does it."""

    def __init__(self, answer: Any = None, *, strips: bool = True) -> None:
        self.asked: list[list[int]] = []
        self._answer = answer
        self._strips = strips

    async def post(self, path: str, body: dict[str, Any], _: float) -> httpx2.Response:
        assert (path, body["model"]) == ("/detokenize", "m")
        self.asked.append(body["tokens"])
        if isinstance(self._answer, Exception):
            raise self._answer
        if isinstance(self._answer, httpx2.Response):
            return self._answer
        if isinstance(self._answer, float):
            await anyio.sleep(self._answer)
        text = "".join(WORDS.get(i, f"<{i}>") for i in body["tokens"])
        return httpx2.Response(200, json={"prompt": text.removeprefix(" ") if self._strips else text})


def known(speller: Speller, *ids: int) -> list[str | None]:
    return [speller.vocabulary.get(i) for i in ids]


@pytest.mark.parametrize("strips", [True, False])
async def test_all_unknown_tokens_are_asked_for_in_one_request(strips: bool) -> None:
    server = Tokenizer(strips=strips)
    speller = Speller(server.post)
    speller.vocabulary.learn(7, " government")
    await speller.ask([1, 2, 3, 4, 7], "m")
    assert server.asked == [[7, 7, 1, 7, 2, 7, 3, 7, 4, 7]]
    assert known(speller, 1, 2, 3, 4) == [" a", "b\n", None, " def"], "half a character has no text"
    await speller.ask([1, 2, 3, 4], "m")
    assert len(server.asked) == 1, "what the server could not tell is not asked again"


async def test_without_a_known_token_a_mark_is_found_first() -> None:
    server = Tokenizer()
    speller = Speller(server.post)
    await speller.ask([3, 1, 4], "m")
    assert known(speller, 1, 4) == [" a", " def"]
    assert len(server.asked) <= 5


async def test_at_most_400_tokens_are_asked_for() -> None:
    server = Tokenizer()
    speller = Speller(server.post)
    speller.vocabulary.learn(7, " government")
    await speller.ask(range(1000, 2000), "m")
    assert len(server.asked[0]) == 2 + 2 * MOST_ASKED


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(200, json={"prompt": 7}),
        httpx2.Response(200, json=["x"]),
        httpx2.Response(200, content=b"<html>"),
        httpx2.Response(500, content=b""),
        UpstreamError("connection_refused", "Nobody there"),
    ],
)
async def test_an_answer_that_is_none_teaches_nothing(answer: Any) -> None:
    server = Tokenizer(answer)
    speller = Speller(server.post)
    speller.vocabulary.learn(7, " government")
    await speller.ask([1], "m")
    assert known(speller, 1) == [None]


async def test_a_server_without_detokenize_is_asked_once() -> None:
    server = Tokenizer(httpx2.Response(404, json={"detail": "Not Found"}))
    speller = Speller(server.post)
    for token_id in (1, 2):
        await speller.ask([token_id], "m")
    assert len(server.asked) == 1


def chunk(text: str, *ids: int) -> Chunk:
    return Chunk(at_ns=0, text=text, tokens=len(ids), token_ids=ids)


async def test_texts_are_told_once_and_only_those_of_chunks_with_several_tokens() -> None:
    server = Tokenizer()
    speller = Speller(server.post)
    for token_id in (1, 4):
        speller.vocabulary.learn(token_id, WORDS[token_id])
    lane = LaneSpelling("speculative", speller)
    assert lane.hear(chunk(" government", 7), 1.0) is None
    assert lane.hear(chunk(" ab\n", 1, 2), 2.0) == LaneVocabulary(t_ms=2.0, lane="speculative", ids=(1,), texts=(" a",))
    assert lane.hear(chunk(" ab\n", 1, 2), 3.0) is None
    told = await lane.settle("m", lambda: 9.0)
    assert told == LaneVocabulary(t_ms=9.0, lane="speculative", ids=(2,), texts=("b\n",))
    assert await lane.settle("m", lambda: 9.0) is None


# --- in a race --------------------------------------------------------------------------------------


def runner(server: Tokenizer, *chunks: Chunk, speculating: bool | None = True) -> FakeRunner:
    made = FakeRunner(*chunks, FIN, speculating=speculating, method="ngram", k=4)
    made.speller = Speller(server.post)
    return made


async def raced(speculative: FakeRunner) -> list[Any]:
    run = hub_of(FakeRunner(chunk("x", 9), 0.05, FIN, speculating=False), speculative, Memory()).start(spec())
    return list((await end_of(run)).log.between(0))


async def test_the_server_is_asked_after_both_lanes_and_before_the_end() -> None:
    server = Tokenizer()
    events = await raced(runner(server, chunk(" a", 1), chunk(" government", 7), chunk(" defb\n", 4, 2)))
    told = next(i for i, event in enumerate(events) if isinstance(event, LaneVocabulary))
    assert (events[told].ids, events[told].texts) == ((4, 2), (" def", "b\n"))
    assert max(i for i, event in enumerate(events) if isinstance(event, (LaneFinished, LaneChunk))) < told
    assert isinstance(events[-1], RaceFinished)


async def test_a_server_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ASK_S <= 2
    monkeypatch.setattr("app.race.speller.ASK_S", 0.1)
    server = Tokenizer(60.0)
    with anyio.fail_after(2):
        events = await raced(runner(server, chunk(" a", 1), chunk(" government", 7), chunk(" defb\n", 4, 2)))
    assert not any(isinstance(event, LaneVocabulary) for event in events)
    assert events[-1].status == "finished"


async def test_nobody_is_asked_about_a_lane_without_drafts_or_without_chunks_of_several_tokens() -> None:
    server = Tokenizer()
    await raced(runner(server, chunk(" a", 1), chunk(" defb\n", 4, 2), speculating=False))
    await raced(runner(server, chunk(" a", 1), chunk("b\n", 2)))
    assert server.asked == []
