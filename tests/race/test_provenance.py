"""Which tokens came from the draft: worked by hand, against an engine made of dice, and on real runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from app.race.events import LaneChunk, LaneDrafts
from app.race.provenance import Mark, Provenance, Step, guess, marks, provenance
from app.race.replay import read_recording
from app.race.spelling import Shared
from app.race.types import LANES, SpecRecord
from tests.fakes.fixtures import recording

ROOT = Path(__file__).resolve().parent.parent.parent


def record(accepted: list[int], drafted: list[int] | None = None, **rest: Any) -> SpecRecord:
    drafted = [4] * len(accepted) if drafted is None else drafted
    fields: dict[str, Any] = {
        "source": "request",
        "drafts": len(accepted),
        "drafted": sum(drafted),
        "accepted": sum(accepted),
        "per_step_accepted": tuple(accepted),
        "per_step_drafted": tuple(drafted),
    }
    return SpecRecord(**fields | rest)


def flags(found: Provenance) -> str:
    """ "p" prefill, "d" draft, "t" target's own; chunks apart with a bar."""
    return "|".join("".join(flags_of(step) for step in chunk or ()) for chunk in found.steps)


def flags_of(step: Step) -> str:
    return "p" if step.prefill else "d" * step.drafts + "t" * (step.tokens - step.drafts)


# --- live: from sizes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "k", "first", "expected"),
    [
        (1, 4, True, "p"),
        (3, 4, True, "pdt"),
        (1, 4, False, "t"),
        (5, 4, False, "ddddt"),
        (7, 4, False, "ddddtdt"),
        (7, None, False, "ddddddt"),
        (10, 4, False, "ddddtddddt"),
        (0, 4, False, ""),
        (0, 4, True, ""),
    ],
)
def test_a_chunk_is_read_as_the_fewest_steps_that_can_have_made_it(
    tokens: int, k: int | None, first: bool, expected: str
) -> None:
    assert "".join(flags_of(step) for step in guess(tokens, k, first=first)) == expected


def test_without_a_record_it_is_an_estimate() -> None:
    found = provenance([1, 5, 1, 3], 4, None)
    assert (found.grade, flags(found), found.drafted, found.tokens) == ("estimate", "p|ddddt|t|ddt", 6, 10)


def test_counters_say_nothing_of_single_tokens() -> None:
    found = provenance([1, 5], 4, record([4], source="server"))
    assert found.grade == "estimate"


def test_a_chunk_without_a_count_has_no_marks() -> None:
    found = provenance([1, None, 5], 4, record([4]))
    assert (found.grade, flags(found)) == ("estimate", "p||ddddt")
    assert found.steps[1] is None


# --- at the end: by hand ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "accepted", "grade", "expected"),
    [
        # every step drafted, one step a chunk
        ([1, 5, 1, 3], [4, 0, 2], "exact", "p|ddddt|t|ddt"),
        # every step drafted, two steps merged: the record tells them apart
        ([1, 6, 3], [4, 0, 2], "exact", "p|ddddtt|ddt"),
        # the prefill's token and the first step merged
        ([6, 1], [4, 0], "exact", "pddddt|t"),
        # the last step cut at the length limit
        ([1, 5, 2], [4, 3], "exact", "p|ddddt|dd"),
        ([1, 5, 1], [4, 3], "exact", "p|ddddt|d"),
        # n-gram: steps without a draft are not listed, and come one token a chunk
        ([1, 1, 1, 5, 1, 3, 1], [4, 2], "exact", "p|t|t|ddddt|t|ddt|t"),
        ([1, 1, 5, 1, 3], [0, 4, 0, 3], "exact", "p|t|ddddt|t|ddd"),
        # a draft of which nothing was accepted looks like none
        ([1, 1, 1, 5], [0, 4], "exact", "p|t|t|ddddt"),
        # chunks without text count too; an empty one at the end holds nothing
        ([1, 5, 0, 3, 0], [4, 2], "exact", "p|ddddt||ddt|"),
        # nothing accepted at all: every token is the target's, merged or not
        ([1, 3, 1], [0], "exact", "p|ttt|t"),
        ([1, 1, 1], [], "exact", "p|t|t"),
        # a step with a draft and one without share a chunk: where the draft stands is not certain
        ([1, 6, 1, 1], [4], "approximate", "p|ddddtt|t|t"),
    ],
)
def test_the_records_steps_are_laid_against_the_chunks(
    sizes: list[int], accepted: list[int], grade: str, expected: str
) -> None:
    found = provenance(sizes, 4, record(accepted))
    assert found.grade == grade
    assert flags(found) == expected
    assert found.drafted == flags(found).count("d")


def test_two_chunks_that_could_hold_the_one_draft_are_not_exact() -> None:
    found = provenance([1, 5, 5, 1], 4, record([4]))
    assert found.grade == "approximate"
    assert flags(found) in ("p|ddddt|ttttt|t", "p|ttttt|ddddt|t")


@pytest.mark.parametrize(
    ("sizes", "accepted"),
    [([1, 1, 1], [4, 4]), ([1], [4, 4]), ([1, 5], [4, 4, 4]), ([0], [4]), ([], [4])],
)
def test_a_record_that_does_not_fit_is_not_forced(sizes: list[int], accepted: list[int]) -> None:
    assert provenance(sizes, 4, record(accepted)).grade == "estimate"


def test_lists_of_different_lengths_are_no_record() -> None:
    assert provenance([1, 5], 4, record([4], [4, 4])).grade == "estimate"


def test_a_summary_without_steps_is_an_estimate_unless_nothing_was_accepted() -> None:
    assert provenance([1, 5], 4, record([4], per_step_accepted=None, per_step_drafted=None)).grade == "estimate"
    none = SpecRecord(source="request", drafts=3, drafted=12, accepted=0)
    assert (provenance([1, 2], 4, none).grade, flags(provenance([1, 2], 4, none))) == ("exact", "p|tt")


def test_how_many_were_drafted_goes_with_each_step() -> None:
    found = provenance([1, 3, 1], 4, record([2, 0], [4, 3]))
    assert [step.drafted for chunk in found.steps for step in chunk or ()] == [None, 4, 3]


# --- an engine made of dice -------------------------------------------------------------------------


class Made(Struct):
    """What an engine did: chunk sizes, its record, and the truth."""

    sizes: list[int]
    record: SpecRecord
    truth: str
    drafting: bool
    merged: bool


@st.composite
def engines(draw: st.DrawFn, *, merge: bool, always: bool = False) -> Made:
    steps = draw(st.lists(st.one_of(st.integers(0, 4), st.just(0) if always else st.none()), max_size=14))
    emitted = ["d" * (a or 0) + "t" for a in steps]
    if emitted:
        # the limit may cut the last step
        emitted[-1] = emitted[-1][: draw(st.integers(1, len(emitted[-1])))]
    chunks = ["p"]
    for step in emitted:
        if merge and draw(st.booleans()):
            chunks[-1] += step
        else:
            chunks.append(step)
    accepted = [a for a in steps if a is not None]
    return Made(
        sizes=[len(chunk) for chunk in chunks],
        record=record(accepted),
        truth="|".join(chunks),
        drafting=None not in steps,
        merged=len(chunks) != len(emitted) + 1,
    )


@given(engines(merge=False))
def test_one_step_a_chunk_is_found_exactly(made: Made) -> None:
    found = provenance(made.sizes, 4, made.record)
    assert (found.grade, flags(found)) == ("exact", made.truth)


@given(engines(merge=True, always=True))
def test_every_step_drafted_is_found_exactly_however_steps_are_merged(made: Made) -> None:
    found = provenance(made.sizes, 4, made.record)
    assert (found.grade, flags(found)) == ("exact", made.truth)


@given(engines(merge=True))
def test_whatever_comes_every_token_has_one_origin_and_drafts_are_not_made_up(made: Made) -> None:
    found = provenance(made.sizes, 4, made.record)
    assert [sum(step.tokens for step in chunk or ()) for chunk in found.steps] == made.sizes
    assert flags(found).replace("|", "").startswith("p")
    assert flags(found).count("p") == 1
    assert found.grade != "estimate", "the truth itself is a way to lay the steps"
    assert found.drafted <= made.record.accepted
    last = made.record.per_step_accepted[-1] if made.record.per_step_accepted else 0
    assert found.drafted >= made.record.accepted - last, "but for the cut end, all accepted tokens are somewhere"


@given(st.lists(st.integers(0, 6), max_size=20), st.lists(st.integers(0, 6), max_size=20))
def test_a_record_of_something_else_never_fails(sizes: list[int], accepted: list[int]) -> None:
    found = provenance(sizes, 4, record(accepted))
    assert [sum(step.tokens for step in chunk or ()) for chunk in found.steps] == sizes


def test_a_long_answer_is_laid_in_a_moment() -> None:
    """8,000 tokens of an n-gram server with a merged chunk in the middle: bounded work, whatever the record says."""
    sizes = [1, *[1, 5, 1, 1] * 500, 6, *[1, 5, 1, 1] * 500]
    accepted = [4] * 500 + [4] + [4] * 500
    found = provenance(sizes, 4, record(accepted))
    assert (found.grade, found.drafted) == ("approximate", 4004)
    hard = provenance([1, *[2] * 2000], 4, record([1, 0, 0] * 300))
    assert hard.grade == "approximate"


# --- text -------------------------------------------------------------------------------------------

WORDS = {1: "a", 2: "bb", 3: "ccc", 4: "d"}


def told(found: list[Mark]) -> list[tuple[Any, ...]]:
    return [(m.text, m.kind, m.step, m.position, m.tokens) for m in found]


def test_each_token_has_its_step_and_its_place_in_the_draft() -> None:
    found = marks("abbcccd", (1, 2, 3, 4), (Step(4, 3, 4),), WORDS.get, 11)
    assert told(found) == [
        ("a", "draft", 12, 1, 1),
        ("bb", "draft", 12, 2, 1),
        ("ccc", "draft", 12, 3, 1),
        ("d", "target", 12, None, 1),
    ]
    assert {(m.drafts, m.drafted) for m in found} == {(3, 4)}


def test_merged_steps_are_told_apart_in_the_text() -> None:
    found = marks("abbcccd", (1, 2, 3, 4), (Step(2, 1), Step(2, 1)), WORDS.get, 0)
    assert told(found) == [
        ("a", "draft", 1, 1, 1),
        ("bb", "target", 1, None, 1),
        ("ccc", "draft", 2, 1, 1),
        ("d", "target", 2, None, 1),
    ]


def test_the_first_token_is_the_prefills() -> None:
    found = marks("abb", (1, 2), (Step(1, 0, None, True), Step(1, 0)), WORDS.get, 0)
    assert told(found) == [("a", "prefill", None, None, 1), ("bb", "target", 1, None, 1)]


def test_tokens_whose_borders_are_unknown_share_a_mark() -> None:
    assert told(marks("xyd", (8, 9, 4), (Step(3, 2),), WORDS.get, 0)) == [
        ("xy", "draft", 1, 1, 2),
        ("d", "target", 1, None, 1),
    ]
    assert told(marks("axy", (1, 8, 9), (Step(3, 2),), WORDS.get, 0)) == [
        ("a", "draft", 1, 1, 1),
        ("xy", "mixed", 1, 2, 2),
    ]
    (mixed,) = marks("xyz", (7, 8, 9), (Step(2, 1), Step(1, 0)), WORDS.get, 0)
    assert (mixed.kind, mixed.tokens, mixed.drafts, mixed.steps) == ("mixed", 3, 1, 2)


def test_without_ids_or_with_the_wrong_number_of_them_a_chunk_stays_whole() -> None:
    for ids in (None, (), (1, 2)):
        (mark,) = marks("abbccc", ids, (Step(3, 2),), WORDS.get, 0)
        assert (mark.text, mark.kind) == ("abbccc", "mixed")


def test_text_without_a_count_is_of_unknown_origin() -> None:
    assert told(marks("abc", None, None, WORDS.get)) == [("abc", "unknown", None, None, 0)]
    assert marks("", (), (), WORDS.get) == []


# --- real runs --------------------------------------------------------------------------------------

RECORDINGS = sorted((ROOT / "deploy/recordings").glob("*.jsonl.gz"))
CUT = {"council-minutes": 1, "json-records": 2, "ship-log": 1, "sql-inserts": 3, "ticket-review": 2}
"""Accepted tokens of the last step that the length limit cut off: 40 or 200 tokens exactly were asked for."""


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_the_recorded_runs_are_exact_to_the_token(path: Path) -> None:
    events = read_recording(path).events
    chunks = [event for event in events if isinstance(event, LaneChunk) and event.lane == "speculative"]
    (said,) = [event.record for event in events if isinstance(event, LaneDrafts)]
    found = provenance([chunk.tokens for chunk in chunks], 4, said)
    assert found.grade == "exact"
    assert found.drafted == said.accepted - CUT.get(path.name.split(".")[0], 0)
    shared = Shared(LANES)
    for event in events:
        if isinstance(event, LaneChunk):
            shared.hear(event.lane, event.token_ids, event.text)
    lookup = shared.lookup("speculative")
    written = [
        mark
        for chunk, steps in zip(chunks, found.steps, strict=True)
        for mark in marks(chunk.text, chunk.token_ids, steps, lookup, 0)
    ]
    assert "".join(mark.text for mark in written) == "".join(chunk.text for chunk in chunks)
    assert sum(mark.tokens for mark in written) == found.tokens


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("code_solo", 0),
        ("json_solo", 2),
        ("sql_solo", 0),
        ("dream_solo", 0),
        ("lighthouse_together", 0),
        ("poem_solo", 0),
    ],
)
def test_real_streams_are_exact_to_the_token(name: str, cut: int) -> None:
    sizes: list[int] = []
    said: dict[str, Any] = {}
    for _, payload in recording(f"sse/{name}_speculative").payloads:
        if payload == "[DONE]":
            continue
        message = json.loads(payload)
        sizes += [len(choice["token_ids"]) for choice in message["choices"] if choice.get("token_ids")]
        said = (message.get("metrics") or {}).get("speculative_decoding") or said
    found = provenance(sizes, 4, record(said["per_step_accepted"], said["per_step_drafted"]))
    assert found.grade == "exact"
    assert found.drafted == said["num_accepted_draft_tokens"] - cut
