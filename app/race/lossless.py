"""Do both servers draw from the same distribution? The judgement over their answers, pure; app.race.sampling asks.

Speculative decoding promises the target's distribution, not its text, so a race cannot show a broken sampler. Here
every token of every probe is a two-sample test (app.race.two_sample), each probe's whole answer is one more, and all
p-values are corrected together. Answers at temperature 0 are compared beside it, for information only: near ties flip
there. The verdict is "no difference found in N samples", never "proved", with the difference that would have shown.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from math import ceil
from typing import Literal

from msgspec import Struct, structs

from app.race import two_sample
from app.race.acceptance import ratio
from app.race.types import SpecRecord

ALPHA = 0.01
"""A pair without a fault is flagged once in a hundred checks."""
POWER = 0.9
RELABELLINGS = 20_000
SEED = 3
WORST = 5
"""Tests that are told in full, the most suspicious first."""
TOKENS_TOLD = 4
ENDED = "(ended)"
LosslessVerdict = Literal["no_difference", "difference", "untested"]
Value = int | str


class Sample(Struct, frozen=True, kw_only=True):
    """One answer. ``ids`` is None where the server sends no token ids; ``texts`` has the ids that came alone in a
    chunk, with their text; ``record`` is the server's count of drafts in this answer."""

    text: str
    ids: tuple[int, ...] | None
    texts: tuple[tuple[int, str], ...] = ()
    record: SpecRecord | None = None


class Drafts(Struct, frozen=True, kw_only=True):
    """Drafts in the sampled answers. ``decided`` is the share (0..1) of their tokens that came from a step with a
    draft: (accepted + steps) / tokens, None where the server does not count steps, or other traffic may be in the
    count. The other tokens test nothing."""

    steps: int | None
    drafted: int
    accepted: int
    acceptance_rate: float | None
    decided: float | None


class Share(Struct, frozen=True, kw_only=True):
    """Shares (0..1) of one token in both samples."""

    token: str
    baseline: float
    speculative: float


class Compared(Struct, frozen=True, kw_only=True):
    """One test. ``token`` counts from 1 within the answer; None: all tokens of the answer together, which have no
    total variation of their own. ``tv_expected`` is what two samples of this size would show without any fault."""

    probe: str
    token: int | None
    p_value: float
    corrected: float
    total_variation: float | None = None
    tv_expected: float | None = None
    shares: tuple[Share, ...] = ()


class Greedy(Struct, frozen=True, kw_only=True):
    """Answers at temperature 0: how many of them are equal, and where the others part (probe, token from 1)."""

    answers: int
    identical: int
    diverged: tuple[tuple[str, int], ...] = ()


class Lossless(Struct, frozen=True, kw_only=True):
    """The whole result. ``samples`` is the number of answers of each server; ``tests`` were corrected together.

    ``detectable`` is the least and the largest, over the tokens tested, of the total variation that would have been
    found with probability 0.9; None where no difference would have been. ``reason`` says why nothing was tested.
    """

    verdict: LosslessVerdict
    samples: int
    reason: str | None = None
    unit: Literal["token", "word"] = "token"
    tests: int = 0
    flagged: int = 0
    alpha: float = ALPHA
    smallest_p: float | None = None
    detectable: tuple[float, float] | None = None
    worst: tuple[Compared, ...] = ()
    drafts: Drafts | None = None
    greedy: Greedy | None = None
    seconds: float | None = None


def judge(
    baseline: Mapping[str, Sequence[Sample]],
    speculative: Mapping[str, Sequence[Sample]],
    *,
    counted: SpecRecord | None,
    greedy: Greedy | None = None,
) -> Lossless:
    """Compare the answers (probe to answers, as many of one server as of the other, at least one).

    ``counted`` holds the drafts of the speculative answers; None when the server does not tell them.
    """
    unit = _unit([*baseline.values(), *speculative.values()])
    tables = {probe: _tables(_values(baseline[probe], unit), _values(speculative[probe], unit)) for probe in baseline}
    tests = sum(len(found) + 1 for found in tables.values())
    each = len(next(iter(baseline.values())))
    # p-values cannot be smaller than one over the relabellings: enough of them for the strictest step of the correction
    count = max(RELABELLINGS, ceil(5 * tests / ALPHA)) - 1
    masks = two_sample.relabellings(each, each, count, SEED)
    every = [answer for side in (baseline, speculative) for answers in side.values() for answer in answers]
    texts: dict[Value, str] = {token: text for answer in every for token, text in answer.texts if text}
    found = [one for probe, own in tables.items() for one in _compared(probe, own, masks, texts)]
    corrected = two_sample.holm([one.p_value for one in found])
    final = [structs.replace(one, corrected=adjusted) for one, adjusted in zip(found, corrected, strict=True)]
    final.sort(key=lambda one: (one.corrected, one.p_value, -_excess(one)))
    drafts = _drafts(counted, speculative)
    flagged = sum(adjusted < ALPHA for adjusted in corrected)
    reason = None if flagged else _why_untested(drafts)
    return Lossless(
        verdict="difference" if flagged else "untested" if reason else "no_difference",
        samples=each * len(baseline),
        reason=reason,
        unit=unit,
        tests=tests,
        flagged=flagged,
        smallest_p=final[0].corrected,
        detectable=_detectable([one for own in tables.values() for one in own], each, ALPHA / tests),
        worst=tuple(final[:WORST]),
        drafts=drafts,
        greedy=greedy,
    )


def compare_greedy(baseline: Mapping[str, Sample], speculative: Mapping[str, Sample]) -> Greedy:
    """Answers at temperature 0, probe by probe, by token ids or else by words."""
    unit = _unit([list(baseline.values()), list(speculative.values())])
    diverged: list[tuple[str, int]] = []
    for probe, answer in baseline.items():
        (one,), (other,) = _values([answer], unit), _values([speculative[probe]], unit)
        if one != other:
            least = min(len(one), len(other))
            first = next((i for i in range(least) if one[i] != other[i]), least)
            diverged.append((probe, first + 1))
    return Greedy(answers=len(baseline), identical=len(baseline) - len(diverged), diverged=tuple(diverged))


def _why_untested(drafts: Drafts | None) -> str | None:
    if drafts is None:
        return "the speculative server does not tell whether drafts ran"
    return "no drafts ran: nothing was tested" if drafts.drafted == 0 else None


def _unit(groups: Sequence[Sequence[Sample]]) -> Literal["token", "word"]:
    return "token" if all(answer.ids is not None for group in groups for answer in group) else "word"


def _values(answers: Sequence[Sample], unit: Literal["token", "word"]) -> list[tuple[Value, ...]]:
    """What is compared of each answer: its token ids, or its words where a server sends no ids."""
    return [(answer.ids or ()) if unit == "token" else tuple(re.findall(r"\s*\S+", answer.text)) for answer in answers]


def _tables(baseline: Sequence[tuple[Value, ...]], speculative: Sequence[tuple[Value, ...]]) -> list[two_sample.Table]:
    """One table a token. An answer that is over is a value like any other."""
    longest = max(1, *map(len, baseline), *map(len, speculative))
    return [two_sample.table(_column(baseline, at), _column(speculative, at)) for at in range(longest)]


def _column(answers: Sequence[tuple[Value, ...]], at: int) -> list[Value]:
    return [answer[at] if at < len(answer) else ENDED for answer in answers]


def _compared(
    probe: str, tables: Sequence[two_sample.Table], masks: Sequence[int], texts: Mapping[Value, str]
) -> list[Compared]:
    """The tests of one probe: every token, and all of them together. Corrected later."""
    outcomes = [two_sample.compare(table, masks) for table in tables]
    found = [
        Compared(
            probe=probe,
            token=at,
            p_value=outcome.p_value,
            corrected=1.0,
            total_variation=outcome.total_variation,
            tv_expected=outcome.tv_expected,
            shares=_shares(table, texts),
        )
        for at, (table, outcome) in enumerate(zip(tables, outcomes, strict=True), start=1)
    ]
    return [*found, Compared(probe=probe, token=None, p_value=two_sample.together(outcomes), corrected=1.0)]


def _excess(one: Compared) -> float:
    """Total variation beyond what chance makes: p-values have a floor, and many tests may lie on it."""
    return (one.total_variation or 0.0) - (one.tv_expected or 0.0)


def _shares(table: two_sample.Table, texts: Mapping[Value, str]) -> tuple[Share, ...]:
    """The tokens whose shares differ most."""
    rows = [(table.shares(category), category) for category in table.categories]
    rows.sort(key=lambda row: -abs(row[0][0] - row[0][1]))
    return tuple(
        Share(token=_name(category.values, texts), baseline=first, speculative=second)
        for (first, second), category in rows[:TOKENS_TOLD]
    )


def _name(values: tuple[Hashable, ...], texts: Mapping[Value, str]) -> str:
    """A token as people can read it; the category of the rare ones has several."""
    if len(values) != 1:
        return f"any of {len(values)} rare ones"
    value = values[0]
    if isinstance(value, int):
        return repr(texts[value]) if value in texts else f"id {value}"
    return ENDED if value == ENDED else repr(value)


def _detectable(tables: Sequence[two_sample.Table], each: int, alpha: float) -> tuple[float, float] | None:
    sizes = {len(table.categories) for table in tables} - {1}
    least = [two_sample.detectable(each, size, alpha=alpha, power=POWER) for size in sizes]
    known = [value for value in least if value is not None]
    return (min(known), max(known)) if known and len(known) == len(least) else None


def _drafts(counted: SpecRecord | None, answers: Mapping[str, Sequence[Sample]]) -> Drafts | None:
    if counted is None or not counted.certain:
        return None
    tokens = sum(len(answer.ids or ()) for group in answers.values() for answer in group)
    decided = None if counted.drafts is None else ratio(counted.accepted + counted.drafts, tokens)
    return Drafts(
        steps=counted.drafts,
        drafted=counted.drafted,
        accepted=counted.accepted,
        acceptance_rate=ratio(counted.accepted, counted.drafted),
        # the last step of an answer may have accepted more than was still wanted
        decided=min(1.0, decided) if decided is not None and counted.exclusive else None,
    )
