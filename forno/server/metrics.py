"""Prometheus metrics in prometheus_client's exposition format. Those that vLLM has too take the prefix ``forno:`` or
``vllm:``, as configured; those that only forno has are ``forno:`` always, lest they be taken for vLLM's.

Imported by the first scrape: a start has no use for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from forno.server.histogram import Histogram

VLLM_NAMES = frozenset(
    (
        *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc"),
        *("cache_config_info", "prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens"),
        *("prompt_tokens_cached", "generation_tokens", "request_success", "spec_decode_num_drafts"),
        *("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "spec_decode_num_accepted_tokens_per_pos"),
        *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
        *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds"),
        *("request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens"),
        *("request_generation_tokens", "request_params_max_tokens", "request_prefill_kv_computed_tokens"),
        *("iteration_tokens_total", "request_num_preemptions", "engine_healthy", "admission_rejections"),
    )
)
"""What vLLM calls the same."""
Label = str | tuple[str, ...]
"""The name or value of one label, or of several."""


class Family:
    """Makes metric families with one prefix and one set of labels."""

    def __init__(self, prefix: str, labels: dict[str, str]) -> None:
        self.prefix, self.names, self.values = prefix, list(labels), list(labels.values())

    def full(self, name: str) -> str:
        """``name`` with its prefix."""
        return f"{self.prefix if name in VLLM_NAMES else 'forno'}:{name}"

    def gauge(self, name: str, text: str, value: float) -> Metric:
        return self._by(GaugeMetricFamily, (), name, text, {(): value})

    def counter(self, name: str, text: str, value: float) -> Metric:
        return self._by(CounterMetricFamily, (), name, text, {(): value})

    def gauges(self, label: Label, name: str, text: str, values: Mapping[Any, float]) -> Metric:
        """Gauges told apart by one more label, or by several."""
        return self._by(GaugeMetricFamily, label, name, text, values)

    def counters(self, label: Label, name: str, text: str, values: Mapping[Any, float]) -> Metric:
        """Counters told apart by one more label, or by several."""
        return self._by(CounterMetricFamily, label, name, text, values)

    def _by(self, kind: Any, label: Label, name: str, text: str, values: Mapping[Any, float]) -> Metric:
        family = kind(self.full(name), text, labels=[*self.names, *_several(label)])
        for key, value in values.items():
            family.add_metric([*self.values, *_several(key)], value)
        return family

    def histogram(self, name: str, text: str, data: Histogram) -> Metric:
        family = HistogramMetricFamily(self.full(name), text, labels=self.names)
        family.add_metric(self.values, data.cumulative(), sum_value=data.total)
        return family


def _several(label: Label) -> tuple[str, ...]:
    return (label,) if isinstance(label, str) else label


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
