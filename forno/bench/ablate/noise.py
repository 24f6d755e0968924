"""Ratios of interleaved rounds, and which of them are larger than the noise. It knows numbers, no servers.

In each round the baseline is measured first and last, and every arm in between: an arm's ratio is to the mean of the two, so
that slow drift cancels. Logarithms of ratios are averaged over rounds. One spread is estimated from all arms together, for a
handful of rounds says little of a spread; an arm that varies more than the others has its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, inf, isfinite, log, sqrt

import msgspec

from forno.bench.statistics import deviation, mean, student_t


class Ratio(msgspec.Struct, kw_only=True, frozen=True):
    """An arm over the baseline in one metric."""

    value: float
    low: float | None = None
    """Ends of its 95 % interval; None where the noise is unknown."""
    high: float | None = None

    @property
    def real(self) -> bool:
        """Whether it differs from 1 by more than the noise."""
        return self.low is not None and self.high is not None and (self.low > 1.0 or self.high < 1.0)

    @property
    def spread(self) -> float:
        """Half the width of the interval, as a share of the value."""
        return sqrt(self.high / self.low) - 1.0 if self.low and self.high else inf


def log_ratios(arm: Sequence[float | None], first: Sequence[float | None], last: Sequence[float | None]) -> list[float]:
    """One logarithm per round that has all three numbers, and none of them 0."""
    found = []
    for value, a, b in zip(arm, first, last, strict=True):
        if value and a and b:
            found.append(log(value) - (log(a) + log(b)) / 2)
    return found


def pooled(groups: Mapping[str, Sequence[float]]) -> tuple[float, int]:
    """Standard deviation that all groups are taken to share, and its degrees of freedom."""
    several = [values for values in groups.values() if len(values) > 1]
    degrees = sum(len(values) - 1 for values in several)
    if not degrees:
        return inf, 0
    return sqrt(sum((len(values) - 1) * deviation(values) ** 2 for values in several) / degrees), degrees


def ratios(groups: Mapping[str, Sequence[float]]) -> dict[str, Ratio]:
    """Arm -> its ratio, from its logarithms; arms without any are left out."""
    spread, degrees = pooled(groups)
    found = {}
    for name, values in groups.items():
        if not values:
            continue
        middle = mean(values)
        half = student_t(degrees) * spread / sqrt(len(values)) if degrees else inf
        own = deviation(values)
        if len(values) > 2 and own > 2 * spread:
            half = student_t(len(values) - 1) * own / sqrt(len(values))
        ends = (exp(middle - half), exp(middle + half)) if isfinite(half) else (None, None)
        found[name] = Ratio(value=exp(middle), low=ends[0], high=ends[1])
    return found
