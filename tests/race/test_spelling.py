"""A chunk's text is cut between its tokens only where their texts are known and meet the text that came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.race.spelling import Listener, Piece, Shared, Vocabulary, apart, between, split

WORDS = {1: "The", 2: " cat", 3: " sat", 4: "é"}


def cut(text: str, *ids: int) -> list[tuple[str, int]]:
    return [(piece.text, piece.tokens) for piece in split(text, ids, WORDS.get)]


def test_known_tokens_are_cut_apart() -> None:
    assert cut("The cat sat", 1, 2, 3) == [("The", 1), (" cat", 1), (" sat", 1)]


def test_one_unknown_token_is_what_the_others_leave() -> None:
    assert cut("The big sat", 1, 9, 3) == [("The", 1), (" big", 1), (" sat", 1)]
    assert cut("The cat", 1, 2, 9) == [("The", 1), (" cat", 1), ("", 1)], "an end-of-text token has no text"


def test_several_unknown_tokens_stay_together() -> None:
    assert cut("The big fat sat", 1, 8, 9, 3) == [("The", 1), (" big fat", 2), (" sat", 1)]


def test_texts_that_contradict_are_not_believed() -> None:
    assert cut("The dog sat", 1, 2, 3) == [("The", 1), (" dog", 1), (" sat", 1)], "only one token is left for it"
    assert cut("The dog", 1, 2, 3) == [("The", 1), (" dog", 2)]
    assert cut("The cat sat down", 1, 2, 3) == [("The cat sat down", 3)]


def test_half_a_character_comes_with_its_other_half() -> None:
    """The chunk [The, half] shows "The", the next one [other half, cat] shows the character and " cat"."""
    assert cut("The", 1, 7) == [("The", 1), ("", 1)]
    assert cut("🫠 cat", 8, 2) == [("🫠", 1), (" cat", 1)]


@given(st.lists(st.sampled_from([*WORDS, 8, 9]), max_size=8), st.dictionaries(st.sampled_from([8, 9]), st.text("ab ")))
def test_nothing_is_lost_or_made_up(ids: list[int], more: dict[int, str]) -> None:
    texts = {8: " x", 9: "y"} | WORDS
    text = "".join(texts[i] for i in ids)
    pieces = split(text, ids, (WORDS | more).get)
    assert "".join(piece.text for piece in pieces) == text
    assert sum(piece.tokens for piece in pieces) == len(ids)


@given(st.lists(st.sampled_from([*WORDS]), max_size=8))
def test_what_is_known_is_cut_into_single_tokens(ids: list[int]) -> None:
    text = "".join(WORDS[i] for i in ids)
    assert split(text, ids, WORDS.get) == [Piece(WORDS[i], 1) for i in ids] or ids == []


# --- learning ---------------------------------------------------------------------------------------


def heard(*chunks: tuple[tuple[int, ...] | None, str]) -> Vocabulary:
    vocabulary = Vocabulary()
    listener = Listener(vocabulary)
    for ids, text in chunks:
        listener.hear(ids, text)
    return vocabulary


def test_chunks_of_one_token_teach_and_others_do_not() -> None:
    known = heard(((1,), "The"), ((2,), " cat"), ((3, 4), " sat!"), ((5,), " on"))
    assert [known.get(i) for i in (2, 3, 4, 5)] == [" cat", None, None, " on"]


def test_the_first_token_teaches_nothing_since_it_may_have_lost_a_space() -> None:
    assert heard(((1,), "The")).get(1) is None


def test_a_token_after_one_without_text_teaches_nothing() -> None:
    known = heard(((1,), "The"), ((2,), ""), ((3,), "🫠 cat"), ((4,), " sat"))
    assert [known.get(i) for i in (2, 3, 4)] == [None, None, " sat"]


@pytest.mark.parametrize("text", ["", "\ufffd", "a\ufffd"])
def test_no_text_and_half_characters_are_not_learned(text: str) -> None:
    assert heard(((1,), "a"), ((2,), text)).get(2) is None


def test_a_token_with_two_texts_cannot_be_relied_on() -> None:
    known = heard(((1,), "a"), ((2,), " b"), ((2,), "b"), ((2,), " b"))
    assert known.get(2) is None


def test_lanes_share_what_they_know() -> None:
    shared = Shared(("baseline", "speculative"))
    for ids, text in (((1,), "a"), ((2,), " b")):
        shared.hear("baseline", ids, text)
    shared.tell("speculative", (3,), (" c",))
    lookup = shared.lookup("speculative")
    assert [lookup(2), lookup(3), lookup(4)] == [" b", " c", None]


def test_two_tokenizers_share_nothing() -> None:
    shared = Shared(("baseline", "speculative"))
    shared.tell("baseline", (2, 3), (" b", " c"))
    shared.tell("speculative", (2,), ("xyz",))
    assert [shared.lookup("speculative")(2), shared.lookup("speculative")(3)] == ["xyz", None]


# --- asking -----------------------------------------------------------------------------------------


def test_what_is_asked_comes_apart_again() -> None:
    texts = {7: " government", 1: " a", 2: "b\n", 3: ""}
    asked = between(7, (1, 2, 3))
    assert asked == [7, 7, 1, 7, 2, 7, 3, 7]
    decoded = "".join(texts[i] for i in asked)
    assert apart(decoded, " government", (1, 2, 3)) == {1: " a", 2: "b\n", 3: ""}
    assert apart(decoded.removeprefix(" "), " government", (1, 2, 3)) == {1: " a", 2: "b\n", 3: ""}


@pytest.mark.parametrize("decoded", ["", " x", " x x a x", " x x a x b", " x x a x x b x", "y x a x b x"])
def test_an_answer_that_does_not_come_apart_is_dropped(decoded: str) -> None:
    assert apart(decoded, " x", (1, 2)) == {}
