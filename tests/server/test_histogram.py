"""Histograms of our own, against prometheus_client's."""

from __future__ import annotations

import prometheus_client
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.server.histogram import ITL, REQUEST, TTFT, Histogram, token_buckets


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 10) | st.sampled_from([0.001, 0.01, 2.5]), max_size=30))
def test_a_histogram_counts_as_prometheus_does(values: list[float]) -> None:
    bounds = (0.001, 0.01, 2.5)
    ours = Histogram(bounds)
    registry = prometheus_client.CollectorRegistry()
    theirs = prometheus_client.Histogram("x", "x", registry=registry, buckets=bounds)
    for value in values:
        ours.observe(value)
        theirs.observe(value)
    [family] = registry.collect()
    expected = [(s.labels["le"], s.value) for s in family.samples if s.name == "x_bucket"]
    assert ours.cumulative() == expected
    assert abs(ours.total - sum(values)) < 1e-9


def test_bounds_rise() -> None:
    for bounds in (TTFT, ITL, REQUEST, token_buckets(8192)):
        assert list(bounds) == sorted(set(bounds))
    assert token_buckets(25) == (1, 2, 5, 10, 20)
    assert token_buckets(0) == (1,)
