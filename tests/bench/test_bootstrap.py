"""Intervals from single runs hold the truth, feel what belongs together, and admit what they cannot know."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.bench import bootstrap
from forno.bench.bootstrap import Clusters, by_requests, by_slices, clusters, rates
from forno.bench.records import RequestRecord
from forno.bench.statistics import percentile
from tests.bench.simulate import closed


def alone(values: list[float], run: int) -> Clusters:
    return {(run, 0, 1, i): [v] for i, v in enumerate(values)}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 3)), min_size=1, max_size=20), st.floats(0, 1))
def test_a_weighted_percentile_is_that_of_repeated_values(pairs: list[tuple[float, int]], share: float) -> None:
    groups: Clusters = {(i,): [value] for i, (value, _) in enumerate(pairs)}
    side = bootstrap._Side(groups, {key: i for i, key in enumerate(groups)})
    found = side.draw(np.array([times for _, times in pairs]), share)
    expected = percentile([value for value, times in pairs for _ in range(times)], share)
    assert found == pytest.approx(expected, nan_ok=True)


def test_intervals_of_independent_runs_hold_the_truth_as_often_as_they_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "MOST", 300)
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(100):
        a, b = rng.exponential(10, 60).tolist(), rng.exponential(10, 60).tolist()
        d = by_requests(alone(a, 1), alone(b, 2), None, (0, 0))
        held += d.low <= 0 <= d.high
    assert 88 <= held <= 99


def test_turns_of_a_conversation_are_no_independent_evidence() -> None:
    rng = np.random.default_rng(4)
    talks = {(1, 0, 0, i): [v] * 10 for i, v in enumerate(rng.normal(50, 10, 20).tolist())}
    others = {(2, 0, 0, i): [v] * 10 for i, v in enumerate(rng.normal(50, 10, 20).tolist())}
    together = by_requests(talks, others, 0.5, (0, 0))
    apart = by_requests(
        alone([v for g in talks.values() for v in g], 1), alone([v for g in others.values() for v in g], 2), 0.5, (0, 0)
    )
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_what_both_runs_asked_cancels() -> None:
    rng = np.random.default_rng(5)
    slow = rng.lognormal(3, 1, 80)
    a, b = slow.tolist(), (slow * 0.95).tolist()
    assert by_requests(alone(a, 1), alone(b, 1), None, (0, 0)).real
    assert not by_requests(alone(a, 1), alone(b, 2), None, (0, 0)).real


def test_a_percentile_that_few_requests_reach_is_unknown() -> None:
    d = by_requests(alone([1.0] * 100, 1), alone([2.0] * 100, 1), 0.99, (1, 2))
    assert (d.basis, d.low, d.high, d.real) == ("nothing", -inf, inf, False)
    assert by_requests(alone([1.0] * 200, 1), alone([2.0] * 200, 1), 0.99, (1, 2)).real
    assert by_requests({}, alone([1.0] * 9, 1), None, (0, 1)).basis == "nothing"


def test_clusters_are_conversations_or_requests() -> None:
    run = closed(1, count=2)
    requests = [RequestRecord(index=i, session=s, scheduled=0) for i, s in enumerate([-1, 4, 4, -1, 5])]
    found = clusters(run, requests, lambda r: [] if r.session == 5 else [float(r.index)])
    assert list(found.values()) == [[0.0], [1.0, 2.0], [3.0]]


def test_rates_of_slices_add_up() -> None:
    run = closed(4)
    slices = rates(run, bootstrap.output)
    assert len(slices) == bootstrap.SLICES
    assert np.mean(slices) == pytest.approx(run.summary.output_tokens_per_s, rel=1e-6)
    tokens = sum(amount for r in run.requests for _, amount in bootstrap.total(r))
    assert tokens == pytest.approx(sum(r.prompt_tokens + r.output_tokens for r in run.requests))
    start, end = run.window
    ended = sum(r.error is None and start <= r.ended <= end for r in run.requests)
    assert np.mean(rates(run, bootstrap.completion)) * (end - start) == pytest.approx(ended)


def test_rates_without_a_window_are_unknown() -> None:
    run = closed(4)
    run.window = (3.0, 3.0)
    assert rates(run, bootstrap.output) == []
    assert by_slices([], [1.0, 2.0], (0, 1)).basis == "nothing"
    d = by_slices([9.0, 11.0] * 5, [19.0, 21.0] * 5, (100, 200))
    assert d.real
    assert (d.a, d.b, d.basis) == (100, 200, "slices")
    assert (d.low + d.high) / 2 == pytest.approx(100), "slices are scaled to the summaries' rates"


def test_failed_requests_have_no_tokens_and_no_completion() -> None:
    failed = RequestRecord(index=0, scheduled=0, ended=1, error="no", error_kind="status")
    assert bootstrap.output(failed) == bootstrap.total(failed) == bootstrap.completion(failed) == []
