"""Prometheus metrics under vLLM's names, with the prefix ``forno:`` or ``vllm:``.

Counters and gauges are read from the engine when scraped; only latency samples are taken as they happen, into
plain lists, since they happen once per token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

# vLLM's buckets, with finer low ones: a small model on a CPU decodes well below ten milliseconds a token.
TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
ITL = (
    0.001,
    0.0025,
    0.005,
    0.0075,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)


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


class Family:
    """Makes metric families with one prefix and one set of labels."""

    def __init__(self, prefix: str, labels: dict[str, str]) -> None:
        self.prefix, self.names, self.values = prefix, list(labels), list(labels.values())

    def gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{self.prefix}:{name}", text, labels=self.names)
        family.add_metric(self.values, value)
        return family

    def counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"{self.prefix}:{name}", text, labels=self.names)
        family.add_metric(self.values, value)
        return family

    def by(self, kind: Any, label: str, name: str, text: str, values: Mapping[str, float]) -> Metric:
        """A family with one more label."""
        family = kind(f"{self.prefix}:{name}", text, labels=[*self.names, label])
        for key, value in values.items():
            family.add_metric([*self.values, key], value)
        return family

    def histogram(self, name: str, text: str, data: Histogram) -> Metric:
        family = HistogramMetricFamily(f"{self.prefix}:{name}", text, labels=self.names)
        family.add_metric(self.values, data.cumulative(), sum_value=data.total)
        return family


class Exposition:
    """Adapts a function that yields families to prometheus_client's text format."""

    def __init__(self, families: Any) -> None:
        self._families = families
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        yield from self._families()

    def describe(self) -> list[Metric]:
        return []

    def text(self) -> bytes:
        return generate_latest(self._registry)
