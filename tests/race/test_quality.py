"""Texts that make a result doubtful: garbage of a real fault, real loops, and real answers that are neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.race.divergence import Answer
from app.race.quality import doubts, garbled, loops
from app.race.replay import read_recording
from app.race.summary import fold
from app.race.types import SpecRecord
from tests.fakes.fixtures import read
from tests.race.helpers import board, chunk, drafts, ended, sent

RECORDINGS = sorted((Path(__file__).parents[2] / "deploy" / "recordings").iterdir())
TEXTS: dict[str, Any] = json.loads(read("quality_texts.json"))
ALL_ACCEPTED = SpecRecord(source="request", drafts=8, drafted=32, accepted=32)
PROSE = (
    "The keeper lit the lamp and counted the boats that came home before the storm, one light for each, and wrote "
    "their names in the book as her mother had taught her to. Nothing was said for a long time. Then the wind turned."
)


def said(text: str, ids: list[int] | None = None) -> Answer:
    return Answer([(1, text)], ids)


# ---------------------------------------------------------------------------------------- garbled text
@pytest.mark.parametrize("prompt", ["json-records", "poem", "sql-inserts"])
def test_what_the_unrepaired_cpu_pair_wrote_is_garbled(prompt: str) -> None:
    real = TEXTS["broken"][prompt]
    assert real["acceptance_rate"] < 0.07
    assert doubts(said(PROSE), said(real["text"]), real["acceptance_rate"]) == ("garbled_text",)


@pytest.mark.parametrize("name", ["temperature 2", "random ids"])
def test_tokens_drawn_at_random_are_garbled(name: str) -> None:
    assert garbled(TEXTS["garbled"][name])


def test_broken_characters_are_garbled() -> None:
    words = ["word"] * 40
    assert not garbled(" ".join(words))
    assert garbled(" ".join([*words, "\ufffd" * 5]))
    assert garbled(" ".join([*words, "\x00\x1b" * 3]))
    assert not garbled("\r\n\t".join(words))


def test_pieces_of_words_are_garbled() -> None:
    assert garbled(" ".join(["cursiveFromFile", "rankedpriceWith", "on", "the", "tunnelIns"] * 6))


@pytest.mark.parametrize(
    "text",
    [
        PROSE,
        "def deposit(self, amount):\n    if amount <= 0:\n        raise ValueError('x')\n" * 4,
        "<h5>A fridge</h5> keeps cold — what's in it; e.g. milk/eggs (1.5 l) at 4°C, isn't it? " * 3,
        "東京は日本の首都です。 カタカナ と ひらがな と 漢字 が まじる。 " * 8,
        "The word λόγος means reason, and the Greeks used it for speech. " * 4,
        "Ἐν ἀρχῇ ἦν ὁ λόγος, καὶ ὁ λόγος ἦν πρὸς τὸν θεόν, καὶ θεὸς ἦν ὁ λόγος. " * 3,
    ],
)
def test_honest_text_of_any_kind_is_not_garbled(text: str) -> None:
    assert len(text.split()) >= 24
    assert not garbled(text)


def test_a_short_answer_is_never_called_garbled() -> None:
    assert not garbled("\ufffd\ufffd\ufffd " * 23)


def test_garbage_at_a_usual_acceptance_or_on_both_sides_is_not_flagged() -> None:
    real = TEXTS["broken"]["poem"]["text"]
    assert doubts(said(PROSE), said(real), 0.09) == ("garbled_text",)
    assert doubts(said(PROSE), said(real), 0.1) == ()
    assert doubts(said(PROSE), said(real), None) == ()
    assert doubts(said(TEXTS["garbled"]["temperature 2"]), said(real), 0.01) == ()
    assert doubts(said("Yes."), said(real), 0.01) == ()  # nothing to compare with
    assert doubts(said(PROSE), said(PROSE), 0.0) == ()


# ---------------------------------------------------------------------------------------- repetition loop
@pytest.mark.parametrize("name", ["cat", "q", "list"])
def test_real_loops_are_told_by_ids_and_by_text(name: str) -> None:
    real = TEXTS["loops"][name]
    assert doubts(said(PROSE), said(real["text"], real["token_ids"]), 1.0) == ("repetition_loop",)
    assert doubts(said(PROSE), said(real["text"]), 1.0) == ("repetition_loop",)


def test_a_loop_that_few_drafts_live_off_is_not_flagged() -> None:
    real = TEXTS["loops"]["cat"]
    assert doubts(said(PROSE), said(real["text"], real["token_ids"]), 0.8) == ("repetition_loop",)
    assert doubts(said(PROSE), said(real["text"], real["token_ids"]), 0.79) == ()


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([*range(100, 148), *[1, 2, 3, 4] * 8], True),  # 32 of 80: exactly two fifths, eight times
        ([*range(100, 149), *[1, 2, 3, 4] * 8], False),  # 32 of 81
        ([7] * 32, True),
        ([7] * 31, False),  # fewer than 32 tokens
        ([*range(16), *range(16), *range(16)], True),  # three times
        ([*range(24), *range(24)], False),  # twice is a quotation
        ([*range(16), *range(16), *range(15)], False),  # not quite three times
        ([*range(10), *range(10), *range(10), *range(10), 99], False),  # it got out of it
        ([], False),
        ([*[1, 2] * 40, *range(100, 140)], False),
        ([9, *[n for i in range(20) for n in (1, 2, 500 + i)]], False),  # the number counts on
    ],
)
def test_what_is_a_loop(tokens: list[int], found: bool) -> None:
    assert loops(tokens) is found


def test_looking_for_loops_takes_one_pass() -> None:
    """A text that nearly loops at every period: comparing them one by one would take a minute."""
    compared = 0

    class Token:
        __hash__ = None  # type: ignore[assignment]

        def __init__(self, value: int) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return isinstance(other, Token) and self.value == other.value

    length = 20_000
    assert not loops([Token(int(i % 9_000 == 0)) for i in range(length)])  # type: ignore[misc]
    assert compared < 3 * length


# ---------------------------------------------------------------------------------------- recorded races
def test_no_recorded_race_is_flagged() -> None:
    """Real answers of every ready prompt: records that count on, code written twice, a poem that nearly loops, a story
    at an acceptance rate of 0.07."""
    rates: list[float] = []
    for path in RECORDINGS:
        race = read_recording(path)
        scores = fold(race.events)
        reading = scores.numbers("speculative").acceptance
        assert reading is not None
        assert reading.rate is not None
        rates.append(reading.rate)
        caveats = scores.comparison(greedy=race.meta.spec.sampling.temperature == 0).caveats
        assert not {"garbled_text", "repetition_loop"} & set(caveats), race.meta.spec.workload
    assert min(rates) < 0.1
    assert max(rates) > 0.9


# ---------------------------------------------------------------------------------------- in the scoreboard
def test_the_caveat_comes_once_both_lanes_have_ended() -> None:
    ids = tuple([1, 2] * 20)
    writing = [sent("baseline"), chunk("baseline", 5, 40, token_ids=ids), sent("speculative")]
    writing += [chunk("speculative", 6, 40, token_ids=ids), drafts("speculative", 7, ALL_ACCEPTED)]
    assert "repetition_loop" not in board(writing, ended("baseline", 8)).comparison(greedy=True).caveats
    done = board(writing, ended("baseline", 8), ended("speculative", 9))
    assert "repetition_loop" in done.comparison(greedy=True).caveats
    assert "repetition_loop" in done.comparison(greedy=False).caveats
