"""The two-sample test: small tables worked by hand or counted out in full, its error rate, and its power."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import pytest

from app.race.two_sample import (
    chi_square_tail,
    compare,
    detectable,
    holm,
    p_value,
    relabellings,
    table,
    together,
)
from tests.race.helpers import exactly


def every_other_relabelling(first: int, second: int) -> list[int]:
    """All ways to call ``first`` observations the first sample, without the one observed."""
    masks = [sum(1 << bit for bit in chosen) for chosen in combinations(range(first + second), first)]
    return [mask for mask in masks if mask != (1 << first) - 1]


# ------------------------------------------------------------------------------------------------ by hand
def test_samples_with_nothing_in_common_by_full_enumeration() -> None:
    counted = table("aaaaa", "bbbbb")
    found = compare(counted, every_other_relabelling(5, 5))
    assert found.statistics[0] == exactly(10.0)  # Pearson's largest: the number of observations
    assert found.total_variation == 1.0
    assert found.p_value == exactly(2 / 252)  # this way and the other way round, of C(10, 5)


def test_four_of_five_against_one_of_five_by_full_enumeration() -> None:
    found = compare(table("aaaab", "abbbb"), every_other_relabelling(5, 5))
    # 2.5 expected in each of four cells: 4 * 1.5**2 / 2.5
    assert found.statistics[0] == exactly(3.6)
    assert found.total_variation == exactly(0.6)
    # as far from 2.5 or farther are 0, 1, 4, 5 of five: 1 + 25 + 25 + 1 of 252
    assert found.p_value == exactly(52 / 252)


def test_samples_of_unequal_size_by_hand() -> None:
    counted = table("aaaab", "aabbbbbbbb")
    # a: 6 of 15, 2 and 4 expected; b: 9 of 15, 3 and 6 expected; each cell is 2 away
    assert compare(counted, [counted.observed]).statistics[0] == exactly(4 / 2 + 4 / 4 + 4 / 3 + 4 / 6)
    assert counted.total_variation == exactly(0.6)
    assert counted.shares(counted.categories[0]) == (0.2, 0.8)  # b is the commonest


def test_three_tokens_expected_variation_is_the_mean_over_relabellings() -> None:
    counted = table("aaaaabbbbb", "aaaaaccccc")
    masks = every_other_relabelling(10, 10)[::1000]
    by_hand = [
        sum(abs(2 * (mask & c.members).bit_count() - c.members.bit_count()) for c in counted.categories) / 20
        for mask in masks
    ]
    assert compare(counted, masks).tv_expected == exactly(sum(by_hand) / len(by_hand))


def test_values_seen_less_than_five_times_are_one_category() -> None:
    counted = table("aaaaaxyz", "aaaaavwx")
    assert [category.values for category in counted.categories] == [("a",), ("x", "y", "z", "v", "w")]
    assert counted.shares(counted.categories[1]) == (0.375, 0.375)


def test_one_value_only_shows_no_difference() -> None:
    found = compare(table("aaaaa", "aaaaa"), every_other_relabelling(5, 5))
    assert (found.p_value, found.total_variation, found.tv_expected) == (1.0, 0.0, 0.0)


def test_a_p_value_is_never_zero() -> None:
    assert p_value([9.0, 1.0, 2.0, 3.0]) == 0.25
    assert p_value([1.0, 1.0, 2.0, 0.5]) == 0.75  # an equal statistic counts


def test_holm_by_hand() -> None:
    # in order 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1, and none below the one before it
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.6, 0.7]) == (1.0, 1.0)
    assert holm([]) == ()


@pytest.mark.parametrize(
    ("point", "freedom", "tail"),
    [
        (3.8415, 1, 0.05),
        (6.6349, 1, 0.01),
        (5.9915, 2, 0.05),
        (9.4877, 4, 0.05),
        (18.307, 10, 0.05),
        (29.588, 10, 0.001),
    ],
)
def test_chi_square_tail_agrees_with_the_printed_table(point: float, freedom: int, tail: float) -> None:
    assert chi_square_tail(point, freedom) == pytest.approx(tail, rel=2e-4)


@pytest.mark.parametrize(("freedom", "needed"), [(1, 10.507), (2, 12.654), (3, 14.171), (4, 15.405), (10, 20.532)])
def test_detectable_is_what_the_tables_of_noncentrality_say(freedom: int, needed: float) -> None:
    """Noncentrality for power 0.90 at level 0.05, as printed in tables of the noncentral chi-square."""
    assert detectable(100, freedom + 1, alpha=0.05, power=0.9) == pytest.approx((needed / 200) ** 0.5, rel=1e-4)


def test_too_few_samples_detect_nothing() -> None:
    assert detectable(5, 2, alpha=0.001, power=0.9) is None
    assert detectable(100, 1, alpha=0.01, power=0.9) is None


# ------------------------------------------------------------------------------------------------ by simulation
def drawn(draw: random.Random, shares: Sequence[float], n: int) -> list[int]:
    return draw.choices(range(len(shares)), weights=shares, k=n)


def test_relabellings_have_the_right_size_and_are_equally_likely() -> None:
    masks = relabellings(2, 3, 10_000, seed=1)
    counts = Counter(masks)
    assert len(counts) == 10  # C(5, 2), so each about 1,000 times, give or take 30
    assert all(mask.bit_count() == 2 for mask in counts)
    assert all(880 < n < 1120 for n in counts.values())
    assert relabellings(2, 3, 20, seed=1) == masks[:20]  # the same seed, the same test


def test_equal_distributions_give_uniform_p_values() -> None:
    draw = random.Random(2)
    masks = relabellings(40, 40, 399, seed=3)
    shares = (0.5, 0.2, 0.1, 0.1, 0.05, 0.02, 0.02, 0.01)  # with rare ones
    found = [compare(table(drawn(draw, shares, 40), drawn(draw, shares, 40)), masks).p_value for _ in range(400)]
    for level in (0.05, 0.1, 0.25, 0.5, 0.75):
        expected, deviation = 400 * level, (400 * level * (1 - level)) ** 0.5
        assert abs(sum(p <= level for p in found) - expected) < 3 * deviation, level


@pytest.mark.parametrize(("shares", "most"), [((0.5, 0.5), 0.97), ((0.4, 0.3, 0.2, 0.1), 1.0)])
def test_power_is_what_was_promised(shares: tuple[float, ...], most: float) -> None:
    """At the difference that ``detectable`` names, at least about nine of ten are found; in the worst case no more."""
    n, alpha, draw = 200, 0.01, random.Random(4)
    moved = detectable(n, len(shares), alpha=alpha, power=0.9)
    assert moved is not None
    # half of it above and half below, between the two commonest
    one = (shares[0] + moved / 2, shares[1] - moved / 2, *shares[2:])
    other = (shares[0] - moved / 2, shares[1] + moved / 2, *shares[2:])
    masks = relabellings(n, n, 999, seed=5)
    found = [compare(table(drawn(draw, one, n), drawn(draw, other, n)), masks).p_value <= alpha for _ in range(200)]
    assert 0.84 < sum(found) / 200 <= most


def test_whole_answers_show_what_no_single_token_does() -> None:
    draw = random.Random(6)
    masks = relabellings(100, 100, 1999, seed=7)
    columns = [table(drawn(draw, (0.5, 0.5), 100), drawn(draw, (0.62, 0.38), 100)) for _ in range(8)]
    outcomes = [compare(column, masks) for column in columns]
    assert min(holm([outcome.p_value for outcome in outcomes])) > 0.01
    assert together(outcomes) <= 0.001


def test_scattered_values_show_against_a_concentrated_sample() -> None:
    """Garbage: every token is another one, so no single value is seen twice."""
    draw = random.Random(8)
    scattered = [draw.randrange(1_000, 250_000) for _ in range(60)]
    sane = [draw.choice((1, 2, 3, 4)) for _ in range(60)]
    assert compare(table(sane, scattered), relabellings(60, 60, 4999, seed=9)).p_value == exactly(1 / 5000)
