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


def test_every_bound_of_vllm_is_one_of_ours() -> None:
    """A query for one bucket, such as a burn rate's, keeps its meaning."""
    ttft = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
    itl = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
    request = {0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
    assert ttft <= set(TTFT)
    assert itl <= set(ITL)
    assert request <= set(REQUEST)


def test_tokens_of_milliseconds_are_told_apart() -> None:
    """Half a millisecond is a quarter of a small model's step."""
    low = [bound for bound in ITL if bound <= 0.005]
    assert low == [i / 2000 for i in range(1, 11)]
