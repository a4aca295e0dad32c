"""Where two greedy answers part: by hand, in every way that chunks can lie around that place."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from app.race.divergence import (
    AFTER_CHARS,
    BEFORE_CHARS,
    Answer,
    Divergence,
    closeness,
    compare,
    margin,
    probability,
    rated,
)
from app.race.events import RaceMargin, from_json, to_json
from app.race.replay import read_recording
from app.race.summary import fold, summarize
from app.race.types import Candidate
from tests.race.helpers import board, chunk, ended, meta, over, sent, spec, started

RECORDINGS = Path(__file__).parents[2] / "deploy" / "recordings"
WORDS = {1: "The", 2: " cat", 3: " sat", 4: " on", 5: " cats", 6: " sit", 7: ".", 8: " mat"}


def answer(*chunks: tuple[int, ...], known: dict[int, str] | None = None, ids: bool = True) -> Answer:
    """Chunks of token ids, each with its text; ``known``: tokens whose text is known besides."""
    pieces = [(len(tokens), "".join(WORDS[token] for token in tokens)) for tokens in chunks]
    flat = [token for tokens in chunks for token in tokens]
    return Answer(pieces, flat if ids else None, (known or {}).get)


def parted(one: Answer, other: Answer) -> Divergence:
    found = compare(one, other)
    assert found.verdict == "diverged"
    assert found.divergence is not None
    return found.divergence


def sides(found: Divergence) -> tuple[str, str, str, str]:
    return found.baseline.first, found.baseline.rest, found.speculative.first, found.speculative.rest


# ---------------------------------------------------------------------------------------- by token ids
def test_p19_the_text_is_cut_at_the_first_token_that_differs() -> None:
    found = parted(answer((1,), (2,), (3,), (4,)), answer((1,), (2,), (6,), (7,)))
    assert (found.basis, found.token, found.character, found.before) == ("token_ids", 2, 7, "The cat")
    assert sides(found) == (" sat", " on", " sit", ".")
    assert (found.baseline.token_id, found.speculative.token_id, found.approximate) == (3, 6, False)


def test_two_tokens_that_begin_alike_are_told_apart() -> None:
    """The letters agree as far as "The cat": the tokens do not."""
    found = parted(answer((1,), (2,), (3,)), answer((1,), (5,), (6,)))
    assert (found.token, found.before, found.approximate) == (1, "The", False)
    assert sides(found) == (" cat", " sat", " cats", " sit")


def test_a_chunk_of_several_tokens_is_cut_where_its_tokens_are_known() -> None:
    found = parted(answer((1,), (2,), (3,)), answer((1, 5, 6), known={1: "The", 5: " cats"}))
    assert (found.before, found.approximate) == ("The", False)
    assert sides(found) == (" cat", " sat", " cats", " sit")


def test_a_chunk_of_several_tokens_is_cut_from_behind_too() -> None:
    found = parted(answer((1,), (2,), (3,)), answer((1, 5, 6), known={1: "The", 6: " sit"}))
    assert sides(found) == (" cat", " sat", " cats", " sit")
    assert not found.approximate


def test_without_known_tokens_the_first_word_stands_for_the_token_and_says_so() -> None:
    found = parted(answer((1,), (2,), (3,)), answer((1, 5, 6)))
    assert (found.before, found.approximate) == ("The", True)
    assert sides(found) == (" cat", " sat", " cats", " sit")


def test_where_no_chunk_begins_there_the_common_letters_are_cut_back_to_a_word() -> None:
    found = parted(answer((1, 2, 3)), answer((1, 5, 6)))
    assert (found.token, found.before, found.character, found.approximate) == (1, "The", 3, True)
    assert sides(found) == (" cat", " sat", " cats", " sit")


def test_what_a_known_token_says_is_not_believed_against_the_text() -> None:
    found = parted(answer((1,), (2,), (3,)), answer((1, 5, 6), known={1: "A", 5: " dogs"}))
    assert found.approximate
    assert sides(found) == (" cat", " sat", " cats", " sit")


def test_one_answer_may_end_where_the_other_goes_on() -> None:
    found = parted(answer((1,), (2,), (3,)), answer((1,), (2,)))
    assert (found.token, found.before) == (2, "The cat")
    assert sides(found) == (" sat", "", "", "")
    assert (found.baseline.ended, found.speculative.ended, found.speculative.token_id) == (False, True, None)


def test_an_end_token_without_text_is_a_token() -> None:
    end = Answer([(1, "The"), (1, "")], [1, 99])
    found = parted(answer((1,), (2,)), end)
    assert (found.speculative.token_id, found.speculative.first, found.speculative.ended) == (99, "", False)


def test_they_may_differ_from_the_first_token_on() -> None:
    found = parted(answer((2,), (3,)), answer((6, 7)))
    assert (found.token, found.character, found.before) == (0, 0, "")
    assert sides(found) == (" cat", " sat", " sit", ".")


def test_equal_tokens_are_identical_however_they_were_cut() -> None:
    found = compare(answer((1,), (2,), (3,)), answer((1, 2, 3)))
    assert (found.verdict, found.basis, found.tokens, found.divergence) == ("identical", "token_ids", 3, None)


def test_text_that_comes_late_belongs_to_the_token_that_completes_it() -> None:
    """Half a character has no text: the other half brings the whole."""
    one = Answer([(1, "a"), (1, ""), (1, "🫠"), (1, "!")], [1, 50, 51, 7])
    other = Answer([(1, "a"), (1, ""), (1, "🫡"), (1, "?")], [1, 50, 52, 8])
    found = parted(one, other)
    assert (found.token, found.before) == (2, "a")
    assert sides(found) == ("🫠", "!", "🫡", "?")


@pytest.mark.parametrize(
    ("base", "other", "before"),
    [
        ("e\u0301", "e\u0300", ""),  # e with an acute or a grave accent
        ("👍🏽", "👍🏻", ""),
        ("👩\u200d🚀", "👩\u200d🔬", ""),
        ("🇫🇷", "🇫🇮", ""),
        ("🇩🇪🇫🇷", "🇩🇪🇮🇹", "🇩🇪"),
        ("\r\nx", "\ry", ""),
        ("ab", "ac", "a"),
    ],
)
def test_no_cut_goes_through_what_people_read_as_one_character(base: str, other: str, before: str) -> None:
    found = parted(Answer([(1, base)], None), Answer([(1, other)], None))
    assert found.before == before
    assert found.baseline.first.startswith(base[len(before) :][:1])
    assert found.before + found.baseline.first + found.baseline.rest == base
    assert found.before + found.speculative.first + found.speculative.rest == other


def test_a_border_inside_a_character_is_moved_and_marked() -> None:
    one, other = Answer([(1, "👍"), (1, "🏽")], [1, 2]), Answer([(1, "👍"), (1, "🏻")], [1, 3])
    found = parted(one, other)
    assert (found.before, found.baseline.first, found.speculative.first) == ("", "👍🏽", "👍🏻")
    assert found.approximate


def test_long_texts_are_cut_short_on_both_sides() -> None:
    head, tail = "x" * 500, "y" * 500
    found = parted(Answer([(1, head), (1, "a"), (1, tail)], [1, 2, 9]), Answer([(1, head), (1, "b")], [1, 3]))
    assert (found.character, len(found.before)) == (500, BEFORE_CHARS)
    assert (found.baseline.rest, found.baseline.cut) == ("y" * AFTER_CHARS, True)
    assert (found.speculative.rest, found.speculative.cut) == ("", False)


def test_a_cut_text_begins_and_ends_with_whole_words() -> None:
    text = "word " * 100
    found = parted(Answer([(1, text), (1, "a"), (1, " " + text)], [1, 2, 9]), Answer([(1, text), (1, "b")], [1, 3]))
    assert found.before == "word " * 31  # the 32nd of 160 characters might be half a one
    assert found.baseline.rest == " word" * 47


def test_nothing_gets_lost_or_doubled_wherever_the_chunks_are_cut() -> None:
    """All ways to cut two answers of five tokens into chunks."""
    ways = [[size for size in cut if size] for cut in ((1, 1, 1, 1, 1), (2, 3), (5,), (1, 4), (3, 1, 1), (4, 1))]
    one, other = (1, 2, 3, 4, 8), (1, 2, 6, 4, 7)

    def chunked(tokens: tuple[int, ...], sizes: list[int]) -> list[tuple[int, ...]]:
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        return [tokens[end - size : end] for end, size in zip(ends, sizes, strict=True)]

    for left in ways:
        for right in ways:
            found = parted(answer(*chunked(one, left)), answer(*chunked(other, right)))
            assert found.before + found.baseline.first + found.baseline.rest == "The cat sat on mat"
            assert found.before + found.speculative.first + found.speculative.rest == "The cat sit on."
            assert (found.token, found.before) == (2, "The cat")


# ---------------------------------------------------------------------------------------- by text
def test_without_ids_the_letters_are_compared_and_no_token_is_named() -> None:
    found = parted(answer((1,), (2,), ids=False), answer((1,), (5,), (6,)))
    assert (found.basis, found.token, found.character, found.before) == ("text", None, 7, "The cat")
    assert sides(found) == ("", "", "s", " sit")
    assert found.baseline.ended
    same = compare(answer((1,), ids=False), answer((1,)))
    assert (same.verdict, same.basis, same.tokens) == ("identical", "text", None)


# ---------------------------------------------------------------------------------------- how close it was
def test_a_margin_is_the_difference_of_two_log_probabilities() -> None:
    found = margin(2, Candidate(token_id=3, logprob=-1.25), Candidate(token_id=6, logprob=-1.5))
    assert (found.index, found.difference) == (2, 0.25)
    assert margin(2, Candidate(token_id=3, logprob=-1.25), Candidate(token_id=6)).difference is None
    assert probability(found.baseline) == pytest.approx(math.exp(-1.25))
    assert probability(Candidate(token_id=3)) is None


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [(-0.7, -0.7, "tie"), (-0.7, -0.95, "near"), (-0.825, -0.7, "near"), (-0.5, -0.875, "clear"), (-0.5, None, None)],
)
def test_how_close_is_close(one: float, other: float | None, found: str | None) -> None:
    both = Candidate(token_id=1, logprob=one), Candidate(token_id=2, logprob=other)
    assert closeness(margin(0, *both)) == found


def test_a_margin_of_another_place_is_not_shown() -> None:
    reading = compare(answer((1,), (2,)), answer((1,), (3,)))
    here = margin(1, Candidate(token_id=2, logprob=-1), Candidate(token_id=3, logprob=-1))
    there = margin(7, Candidate(token_id=2, logprob=-1), Candidate(token_id=3, logprob=-1))
    assert reading.divergence is not None
    assert reading.divergence.margin is None
    assert rated(reading, here).divergence.margin == here  # type: ignore[union-attr]
    assert rated(reading, there) == reading
    same = compare(answer((1,)), answer((1,)))
    assert rated(same, here) == same


# ---------------------------------------------------------------------------------------- in a race
def race(*end: Any) -> list[Any]:
    one = [chunk("baseline", 10 + i, 1, text=WORDS[t], token_ids=(t,)) for i, t in enumerate((1, 2, 3))]
    other = [chunk("speculative", 10, 1, text="The", token_ids=(1,))]
    other += [chunk("speculative", 11, 2, text=" cats sit", token_ids=(5, 6))]
    lanes = [sent("baseline"), *one, ended("baseline", 20), sent("speculative"), *other, ended("speculative", 20)]
    return [started(), *lanes, *end]


RATED = RaceMargin(
    t_ms=25.0, index=1, baseline=Candidate(token_id=2, logprob=-0.5), speculative=Candidate(token_id=5, logprob=-0.5)
)


def test_the_race_json_says_where_the_texts_part_and_how_close_it_was() -> None:
    scores = board(race(RATED, over(30)))
    found = summarize(meta(), scores)
    assert (found.comparison.text, found.comparison.diverges_at_token) == ("diverged", 1)
    assert found.divergence is not None
    assert sides(found.divergence) == (" cat", " sat", " cats", " sit")
    assert found.divergence.margin == margin(1, RATED.baseline, RATED.speculative)
    assert summarize(meta(spec=spec(temperature=0.7)), scores).divergence is None
    assert summarize(meta(), board(race())).divergence == structs_without_margin(found.divergence)


def structs_without_margin(found: Divergence) -> Divergence:
    from msgspec import structs

    return structs.replace(found, margin=None)


def test_the_event_survives_its_json() -> None:
    assert from_json(to_json(RATED)) == RATED
    assert b'"type":"race.margin"' in to_json(RATED)


@pytest.mark.parametrize(
    ("greedy", "events", "reason"),
    [
        (False, race(over(30)), "sampled"),
        (True, race()[:-1], "unfinished"),
        (True, [started(), sent("baseline"), ended("baseline", 5), sent("speculative"), ended("speculative", 5)],
         "no_answer"),
    ],
)  # fmt: skip
def test_why_texts_were_not_compared(greedy: bool, events: list[Any], reason: str) -> None:
    found = board(events).same_text(greedy=greedy)
    assert (found.verdict, found.reason, found.divergence) == ("not_comparable", reason, None)


def test_the_comparison_of_texts_is_made_once_and_again_after_news() -> None:
    scores = board(race())
    first = scores.same_text(greedy=True)
    assert scores.same_text(greedy=True) is first
    scores.apply(RATED)
    assert scores.same_text(greedy=True).divergence.margin is not None  # type: ignore[union-attr]
    scores.apply(sent("speculative", 40, retried=True))
    assert scores.same_text(greedy=True).reason == "unfinished"


@pytest.mark.parametrize(
    ("name", "token", "before", "firsts"),
    [
        ("council-minutes", 26, "<h2>Comments</h2> to", (" comment", " comments")),
        ("ship-log", 6, " measured a depth of 1", ("0", "1")),
    ],
)
def test_recorded_races_part_at_the_very_token(name: str, token: int, before: str, firsts: tuple[str, str]) -> None:
    found = fold(read_recording(RECORDINGS / f"{name}.jsonl.gz").events).same_text(greedy=True).divergence
    assert found is not None
    assert (found.token, found.approximate) == (token, False)
    assert found.before.endswith(before)
    assert (found.baseline.first, found.speculative.first) == firsts
