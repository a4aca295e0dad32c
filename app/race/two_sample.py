"""Are two samples of tokens drawn from one distribution? Pearson's statistic, judged by permutation. Pure.

Own code and not scipy (100 MB for one function): a permutation test is ten lines, and unlike scipy's chi-square it
stays exact in tables as sparse as those of sampled tokens, where most cells hold one or two. Samples are kept as the
bits of one integer, so a relabelling is one AND and one bit count: 20,000 of them take a tenth of a second a position.

Sources: p-value of a random permutation test, Phipson and Smyth 2010 (Stat. Appl. Genet. Mol. Biol. 9, 39); Holm 1979
(Scand. J. Stat. 6, 65); power of Pearson's test from the noncentral chi-square distribution, Patnaik 1949 (Biometrika
36, 202).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from math import erfc, exp, lgamma, log, sqrt
from statistics import mean

from msgspec import Struct

RARE_BELOW = 5
"""Values seen less often than this in both samples together are one category: where one sample is concentrated and the
other is scattered over values of its own, that category tells. The rule sees both samples at once and never which is
which, so the test stays exact."""
FOR_TV = 500
"""Relabellings that the expected total variation is averaged over."""


class Category(Struct, frozen=True):
    """One category: the values in it (more than one only in that of the rare), and which observations, as bits."""

    values: tuple[Hashable, ...]
    members: int


class Table(Struct, frozen=True, kw_only=True):
    """Two samples sorted into categories: ``first`` and ``second`` observations, the first ones in the low bits."""

    first: int
    second: int
    categories: tuple[Category, ...]

    @property
    def observed(self) -> int:
        """Which observations are of the first sample, as bits."""
        return (1 << self.first) - 1

    def shares(self, category: Category) -> tuple[float, float]:
        """The category's share (0..1) of the first and of the second sample."""
        of_first = (category.members & self.observed).bit_count()
        return of_first / self.first, (category.members.bit_count() - of_first) / self.second

    @property
    def total_variation(self) -> float:
        """Half the sum of absolute differences of shares, 0..1: the share that would have to move."""
        return sum(abs(a - b) for a, b in map(self.shares, self.categories)) / 2


class Outcome(Struct, frozen=True, kw_only=True):
    """Result of one test. ``tv_expected`` is what total variation would be on average if nothing differed: two finite
    samples never agree. ``statistics`` has Pearson's statistic of the observation and then of each relabelling."""

    p_value: float
    total_variation: float
    tv_expected: float
    statistics: tuple[float, ...]


def table(first: Sequence[Hashable], second: Sequence[Hashable]) -> Table:
    """Sort two samples (one value an observation, neither empty) into categories, the commonest first."""
    members: dict[Hashable, int] = {}
    for index, value in enumerate((*first, *second)):
        members[value] = members.get(value, 0) | 1 << index
    ordered = sorted(members.items(), key=lambda item: -item[1].bit_count())
    common = [Category((value,), bits) for value, bits in ordered if bits.bit_count() >= RARE_BELOW]
    rare = [(value, bits) for value, bits in ordered if bits.bit_count() < RARE_BELOW]
    if rare:
        common.append(Category(tuple(value for value, _ in rare), sum(bits for _, bits in rare)))
    return Table(first=len(first), second=len(second), categories=tuple(common))


def relabellings(first: int, second: int, count: int, seed: int) -> tuple[int, ...]:
    """``count`` random ways to call ``first`` of all observations the first sample, as bits, all equally likely.

    Random bits with the surplus (or what is missing) mended at random places: no place is treated differently from
    another, so every mask of the right size stays equally likely.
    """
    draw = random.Random(seed)
    total = first + second
    masks: list[int] = []
    for _ in range(count):
        mask = draw.getrandbits(total)
        surplus = mask.bit_count() - first
        while surplus:
            bit = 1 << draw.randrange(total)
            if bool(mask & bit) == (surplus > 0):
                mask ^= bit
                surplus += -1 if surplus > 0 else 1
        masks.append(mask)
    return tuple(masks)


def compare(counted: Table, masks: Sequence[int]) -> Outcome:
    """Test the two samples of a table against ``masks`` (from ``relabellings`` with the same sizes)."""
    n, m = counted.first, counted.second
    total = n + m
    members = [category.members for category in counted.categories]
    sizes = [bits.bit_count() for bits in members]
    # what a category adds to Pearson's statistic when `a` of its observations are of the first sample
    pearson = [[(a - size * n / total) ** 2 * total**2 / (size * n * m) for a in range(size + 1)] for size in sizes]
    apart = [[abs(a / n - (size - a) / m) / 2 for a in range(size + 1)] for size in sizes]
    cells = list(zip(members, pearson, strict=True))
    statistics = tuple(
        sum(adds[(mask & bits).bit_count()] for bits, adds in cells) for mask in (counted.observed, *masks)
    )
    cells = list(zip(members, apart, strict=True))
    expected = [sum(adds[(mask & bits).bit_count()] for bits, adds in cells) for mask in masks[:FOR_TV]]
    return Outcome(
        p_value=p_value(statistics),
        total_variation=counted.total_variation,
        tv_expected=mean(expected),
        statistics=statistics,
    )


def together(outcomes: Sequence[Outcome]) -> float:
    """p-value of several positions of the same sequences at once: the sum of their statistics, each relabelling applied
    to whole sequences. Finds a small difference that is spread over all positions."""
    return p_value([sum(values) for values in zip(*(outcome.statistics for outcome in outcomes), strict=True)])


def p_value(statistics: Sequence[float]) -> float:
    """Share of the statistics (observed first, then relabelled) that are as large as the observed; never 0."""
    least = statistics[0] * (1 - 1e-9) - 1e-12
    return sum(value >= least for value in statistics) / len(statistics)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's corrected p-values, in the same order: below alpha, all together are wrong with probability alpha."""
    corrected = [1.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = highest
    return tuple(corrected)


def detectable(n: int, categories: int, *, alpha: float, power: float) -> float | None:
    """Total variation that two samples of ``n`` each in ``categories`` categories reveal with probability ``power`` at
    level ``alpha``, wherever the difference lies; None when not even samples without a value in common would do.

    Pearson's statistic has noncentrality n * sum((p-q)^2/(p+q)), which is at least 2n TV^2 (Cauchy-Schwarz).
    """
    if categories < 2:
        return None
    needed = _noncentrality(categories - 1, alpha, power)
    least = sqrt(needed / (2 * n))
    return least if least <= 1 else None


def _noncentrality(freedom: int, alpha: float, power: float) -> float:
    """Noncentrality at which a chi-square of ``freedom`` degrees exceeds its ``alpha`` point with ``power``."""
    limit = _bisect(lambda x: chi_square_tail(x, freedom) <= alpha)
    return _bisect(lambda noncentrality: chi_square_tail(limit, freedom, noncentrality) >= power)


def chi_square_tail(x: float, freedom: int, noncentrality: float = 0.0) -> float:
    """P(chi-square > x), exactly: a Poisson mixture of central ones, each from the one two degrees below."""
    half = x / 2
    # freedom 1 and 2 have closed forms; every two degrees more add one term
    shape = 0.5 if freedom % 2 else 1.0
    tail = erfc(sqrt(half)) if freedom % 2 else exp(-half)
    while shape < freedom / 2:
        tail, shape = tail + _term(shape, half), shape + 1
    weight, total, left = exp(-noncentrality / 2), 0.0, 1.0
    for count in range(10_000):
        total, left = total + weight * tail, left - weight
        if left < 1e-12:
            break
        tail, shape = tail + _term(shape, half), shape + 1
        weight *= noncentrality / 2 / (count + 1)
    return total


def _term(shape: float, x: float) -> float:
    """x^shape e^-x / Gamma(shape + 1)."""
    return exp(shape * log(x) - x - lgamma(shape + 1)) if x > 0 else 0.0


def _bisect(enough: Callable[[float], bool]) -> float:
    """The smallest number from 0 to 1,000 for which ``enough`` holds, if it holds for all larger ones."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
