"""Histograms that cost next to nothing to observe, and the bounds of ours. It knows no exposition format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

# vLLM's buckets, with finer low ones: a small model on a CPU decodes well below ten milliseconds a token.
TTFT = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5),
    *(7.5, 10, 20, 40, 80, 160, 640, 2560),
)
ITL = (
    *(0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003, 0.0035, 0.004, 0.0045, 0.005, 0.006, 0.0075, 0.01, 0.015, 0.02),
    *(0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
REQUEST = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)


def token_buckets(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... up to ``longest``."""
    steps = (mantissa * 10**power for power in range(12) for mantissa in (1, 2, 5))
    return tuple(float(s) for s in steps if s <= longest) or (1.0,)


class Histogram:
    """Counts per bucket; observing costs a bisection and two additions. One thread."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        labels = [*map(_number, self.bounds), "+Inf"]
        return list(zip(labels, map(float, accumulate(self.counts)), strict=True))


def _number(value: float) -> str:
    return repr(float(value))
