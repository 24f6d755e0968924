"""Prometheus metrics under vLLM's names, with the prefix ``forno:`` or ``vllm:``, in prometheus_client's exposition format.

Imported by the first scrape: a start has no use for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from forno.server.histogram import Histogram


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

    def gauges(self, label: str, name: str, text: str, values: Mapping[str, float]) -> Metric:
        """Gauges told apart by one more label."""
        return self._by(GaugeMetricFamily, label, name, text, values)

    def counters(self, label: str, name: str, text: str, values: Mapping[str, float]) -> Metric:
        """Counters told apart by one more label."""
        return self._by(CounterMetricFamily, label, name, text, values)

    def _by(self, kind: Any, label: str, name: str, text: str, values: Mapping[str, float]) -> Metric:
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
