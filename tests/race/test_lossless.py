"""The judgement over sampled answers, and how it reads: what is found, what is named, and what is never claimed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from msgspec import structs

from app.race import lossless
from app.race.lossless import ENDED, Drafts, Greedy, Lossless, Sample, compare_greedy, judge
from app.race.lossless_report import lines
from app.race.types import SpecRecord
from tests.race.helpers import exactly

RECORD = SpecRecord(source="request", drafts=60, drafted=240, accepted=90)
TEXTS = {1: " heads", 2: " tails", 9: " junk"}
Token = Callable[[random.Random, int], int]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few relabellings as the correction allows: seconds less."""
    monkeypatch.setattr(lossless, "RELABELLINGS", 1)


def coin(draw: random.Random, _at: int) -> int:
    return draw.choice((1, 2))


def answers(seed: int, token: Token = coin, *, n: int = 80, length: int = 4) -> list[Sample]:
    draw = random.Random(seed)
    found: list[Sample] = []
    for _ in range(n):
        ids = tuple(token(draw, at) for at in range(1, length + 1))
        texts = tuple((token, TEXTS[token]) for token in ids)
        found.append(Sample(text="".join(TEXTS[token] for token in ids), ids=ids, texts=texts))
    return found


def told(result: Lossless) -> str:
    return "\n".join(lines(result))


# ------------------------------------------------------------------------------------------------ verdicts
def test_equal_samplers_show_no_difference() -> None:
    result = judge({"coin": answers(1), "dice": answers(2)}, {"coin": answers(3), "dice": answers(4)}, counted=RECORD)
    assert result.verdict == "no_difference"
    assert (result.samples, result.tests, result.flagged) == (160, 10, 0)  # four tokens and the whole, twice
    assert result.smallest_p is not None
    assert result.smallest_p >= 0.01
    assert "no difference found in 160 samples of each server" in told(result)
    assert "no proof" in told(result)
    assert "proved" not in told(result)


def test_a_fault_at_one_token_is_found_and_named() -> None:
    def faulty(draw: random.Random, at: int) -> int:
        return 9 if at == 3 and draw.random() < 0.4 else coin(draw, at)

    result = judge({"coin": answers(1)}, {"coin": answers(2, faulty)}, counted=RECORD)
    assert result.verdict == "difference"
    worst = result.worst[0]
    assert (worst.probe, worst.token) == ("coin", 3)
    assert worst.corrected < 0.01
    assert worst.total_variation is not None
    assert worst.tv_expected is not None
    assert worst.total_variation > 0.25 > worst.tv_expected
    junk = worst.shares[0]
    assert (junk.token, junk.baseline) == ("' junk'", 0.0)
    assert junk.speculative > 0.3
    report = told(result)
    assert "DIFFERENCE FOUND in 80 samples" in report
    assert "coin, token 3: total variation" in report
    assert "' junk'" in report
    assert "vllm-shim" in report  # the remedy


def test_a_small_difference_everywhere_shows_in_whole_answers() -> None:
    def leaning(draw: random.Random, _at: int) -> int:
        return 1 if draw.random() < 0.64 else 2

    result = judge(
        {"coin": answers(5, n=100, length=8)}, {"coin": answers(6, leaning, n=100, length=8)}, counted=RECORD
    )
    assert result.verdict == "difference"
    assert result.worst[0].token is None
    assert "coin, whole answer: p" in told(result)


def test_without_drafts_nothing_was_tested() -> None:
    none = SpecRecord(source="request", drafts=0, drafted=0, accepted=0)
    result = judge({"coin": answers(1)}, {"coin": answers(2)}, counted=none)
    assert result.verdict == "untested"
    assert result.reason == "no drafts ran: nothing was tested"
    assert result.drafts == Drafts(steps=0, drafted=0, accepted=0, acceptance_rate=None, decided=0.0)
    assert "no difference" not in told(result)
    assert "acceptance rate n/a" in told(result)
    assert "--per-request-spec-decode-metrics detailed" in told(result)


@pytest.mark.parametrize("counted", [None, SpecRecord(source="server", drafts=0, drafted=0, accepted=0, certain=False)])
def test_where_nobody_counts_drafts_nothing_was_tested(counted: SpecRecord | None) -> None:
    result = judge({"coin": answers(1)}, {"coin": answers(2)}, counted=counted)
    assert (result.verdict, result.drafts) == ("untested", None)
    assert result.reason is not None
    assert "does not tell whether drafts ran" in result.reason


def test_a_difference_is_one_even_without_drafts() -> None:
    result = judge({"coin": answers(1)}, {"coin": answers(2, lambda _draw, _at: 9)}, counted=None)
    assert (result.verdict, result.reason) == ("difference", None)


# ------------------------------------------------------------------------------------------------ figures
@pytest.mark.parametrize(
    ("counted", "rate", "decided"),
    [
        (RECORD, 90 / 240, 150 / 320),  # 80 answers of 4 tokens; 90 accepted and 60 of the target in 60 steps
        (structs.replace(RECORD, accepted=300, drafted=400), 0.75, 1.0),  # the last step is cut at the length limit
        (structs.replace(RECORD, exclusive=False), 90 / 240, None),
        (structs.replace(RECORD, drafts=None), 90 / 240, None),
    ],
)
def test_drafts_by_hand(counted: SpecRecord, rate: float, decided: float | None) -> None:
    drafts = judge({"coin": answers(1)}, {"coin": answers(2)}, counted=counted).drafts
    assert drafts is not None
    assert drafts.acceptance_rate == exactly(rate)
    assert drafts.decided == (None if decided is None else exactly(decided))


def test_how_sharp_the_test_was_is_said() -> None:
    result = judge({"coin": answers(1)}, {"coin": answers(2)}, counted=RECORD)
    assert result.detectable is not None
    # two categories, level 0.01 over five tests: noncentrality (z(0.999) + z(0.9))^2 = 19.11
    assert result.detectable[0] == pytest.approx((19.11 / 160) ** 0.5, abs=1e-4)
    assert "90 % probability" in told(result)
    assert "0.35 to 0.35" in told(result)
    few = judge({"coin": answers(1, n=5)}, {"coin": answers(2, n=5)}, counted=RECORD)
    assert few.detectable is None
    assert "raise --samples" in told(few)


def test_json_has_null_for_what_does_not_exist() -> None:
    body: dict[str, Any] = msgspec.to_builtins(judge({"coin": answers(1)}, {"coin": answers(2)}, counted=None))
    assert body["drafts"] is None
    assert next(one for one in body["worst"] if one["token"] is None)["total_variation"] is None


# ------------------------------------------------------------------------------------------------ what is compared
def test_an_answer_that_ends_early_is_different() -> None:
    def cut(sample: Sample) -> Sample:
        assert sample.ids is not None
        return structs.replace(sample, ids=sample.ids[:2])

    result = judge({"coin": answers(1)}, {"coin": [cut(sample) for sample in answers(2)]}, counted=RECORD)
    assert result.verdict == "difference"
    assert {share.token for one in result.worst[:2] for share in one.shares} >= {ENDED}


def test_without_token_ids_words_are_compared() -> None:
    def only_text(group: list[Sample]) -> list[Sample]:
        return [Sample(text=sample.text, ids=None) for sample in group]

    same = judge({"coin": answers(1)}, {"coin": only_text(answers(2))}, counted=RECORD)
    assert (same.unit, same.verdict, same.tests) == ("word", "no_difference", 5)
    other = only_text(answers(3, lambda _draw, _at: 9))
    different = judge({"coin": only_text(answers(1))}, {"coin": other}, counted=RECORD)
    assert different.verdict == "difference"
    assert "coin, word 1" in told(different)
    assert "' junk'" in told(different)


def test_a_token_without_known_text_is_named_by_its_id() -> None:
    def bare(group: list[Sample]) -> list[Sample]:
        return [structs.replace(sample, texts=()) for sample in group]

    result = judge({"coin": bare(answers(1))}, {"coin": bare(answers(2, lambda _draw, _at: 9))}, counted=RECORD)
    assert "id 9" in told(result)


def test_greedy_answers_by_hand() -> None:
    def one(*ids: int) -> Sample:
        return Sample(text="", ids=ids)

    base: Mapping[str, Sample] = {"a": one(1, 2, 3), "b": one(1, 2, 3), "c": one(1, 2)}
    found = compare_greedy(base, {"a": one(1, 2, 3), "b": one(1, 2, 4), "c": one(1, 2, 3)})
    assert found == Greedy(answers=3, identical=1, diverged=(("b", 3), ("c", 3)))
    result = judge({"coin": answers(1)}, {"coin": answers(2)}, counted=RECORD, greedy=found)
    assert result.verdict == "no_difference"  # a neutral note
    assert "1 of 3 answers identical" in told(result)
    assert "b from token 3, c from token 3" in told(result)
