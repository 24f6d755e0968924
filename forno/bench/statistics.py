"""Percentiles, confidence intervals, and whether a difference is larger than the noise. It knows numbers only, no metric.

Means over repeats are taken as normal (each repeat averages many requests), so few repeats get Student's t, not 1.96.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import atan, cos, exp, expm1, floor, fsum, inf, isnan, log, nan, pi, sin, sqrt
from statistics import NormalDist

import msgspec

LEVEL = 0.95
"""Of every interval."""
FARTHEST = 100.0
"""Logarithm of the largest ratio that an interval tells."""
LARGE = 1000
"""Degrees of freedom from which Student's t is the normal distribution to three digits."""


def percentile(values: Sequence[float], q: float) -> float:
    """The value below which a share ``q`` (0 to 1) of the values lies; nan without values.

    Linear between the two nearest ranks: definition 7 of Hyndman and Fan (1996), the one of numpy, vLLM and aiperf.
    """
    return ranked(sorted(values), q)


def percentiles(values: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Several of them from one sorting."""
    ordered = sorted(values)
    return [ranked(ordered, q) for q in shares]


def ranked(ordered: Sequence[float], q: float) -> float:
    """``percentile`` of values in ascending order."""
    if not ordered:
        return nan
    place = q * (len(ordered) - 1)
    low = floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def mean(values: Sequence[float]) -> float:
    """nan without values."""
    return fsum(values) / len(values) if values else nan


def deviation(values: Sequence[float]) -> float:
    """Standard deviation of a sample (n - 1 in the denominator); nan with fewer than two values."""
    if len(values) < 2:
        return nan
    middle = mean(values)
    return sqrt(fsum((v - middle) ** 2 for v in values) / (len(values) - 1))


def confidence(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval, by Student's t; the half is nan with fewer than two values."""
    if len(values) < 2:
        return mean(values), nan
    return mean(values), student_t(len(values) - 1) * deviation(values) / sqrt(len(values))


def student_t(degrees: int, level: float = LEVEL) -> float:
    """How many standard errors either side of the mean hold a share ``level`` of Student's distribution."""
    if degrees < 1:
        return inf
    if degrees >= LARGE:
        return NormalDist().inv_cdf((1 + level) / 2)
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < level else (low, middle)
    return (low + high) / 2


def _within(t: float, degrees: int) -> float:
    """Probability that Student's t lies between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(degrees))
    odd = degrees % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for k in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k - 1) / k
    if odd:
        return 2 / pi * (angle + sin(angle) * total)
    return sin(angle) * total


class Difference(msgspec.Struct, kw_only=True, frozen=True):
    """How far ``b`` is from ``a``, with what could be noise."""

    a: float
    b: float
    low: float
    """Ends of the 95 % interval of ``b - a``; infinite where the noise is unknown."""
    high: float
    basis: str
    """What the interval rests on: ``pairs`` of repeats, ``repeats``, ``requests`` or ``slices`` of one run, or ``nothing``."""

    @property
    def change(self) -> float:
        return self.b - self.a

    @property
    def ratio(self) -> float:
        """``b / a``; nan where that means nothing."""
        return self.b / self.a if self.a else nan

    @property
    def real(self) -> bool:
        """Whether the difference is larger than the noise: zero lies outside of its interval."""
        return self.low > 0 or self.high < 0


def welch(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Compare two sets of repeats, whose spreads may differ (Welch's t, degrees of freedom rounded down).

    Fewer than two on a side say nothing of the noise: the interval is infinite.
    """
    middle_a, middle_b = mean(a), mean(b)
    if min(len(a), len(b)) < 2:
        return Difference(a=middle_a, b=middle_b, low=-inf, high=inf, basis="nothing")
    var_a, var_b = deviation(a) ** 2 / len(a), deviation(b) ** 2 / len(b)
    half = 0.0
    if var_a + var_b > 0:
        degrees = (var_a + var_b) ** 2 / (var_a**2 / (len(a) - 1) + var_b**2 / (len(b) - 1))
        half = student_t(floor(degrees + 1e-9)) * sqrt(var_a + var_b)
    change = middle_b - middle_a
    return Difference(a=middle_a, b=middle_b, low=change - half, high=change + half, basis="repeats")


def paired(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Compare two sets of repeats one by one: what both of a pair share, such as their prompts, is no noise.

    As many on both sides; fewer than two pairs say nothing of the noise.
    """
    assert len(a) == len(b)
    change, half = confidence([y - x for x, y in zip(a, b, strict=True)])
    if isnan(half):
        return Difference(a=mean(a), b=mean(b), low=-inf, high=inf, basis="nothing")
    return Difference(a=mean(a), b=mean(b), low=change - half, high=change + half, basis="pairs")


def multiplied(
    a: Sequence[float], b: Sequence[float], compared: Callable[[Sequence[float], Sequence[float]], Difference]
) -> Difference:
    """``welch`` or ``paired`` of logarithms: what makes a machine slow multiplies times and divides rates.

    The means are geometric. All values must be above zero.
    """
    found = compared([log(v) for v in a], [log(v) for v in b])
    low, high = (side if abs(side) == inf else exp(found.a) * expm1(min(side, FARTHEST)) for side in (found.low, found.high))
    return Difference(a=exp(found.a), b=exp(found.b), low=low, high=high, basis=found.basis)


def finite(value: float | None) -> bool:
    """Whether there is a number to compare or to draw."""
    return value is not None and not isnan(value) and abs(value) != inf
