"""Medians, interleaving, tables, and the watch on other processes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.measure import Contention, Results, Sample, interleave, table


def test_a_sample_gives_median_and_spread() -> None:
    sample = Sample((10.0, 12.0, 9.0))
    assert sample.median == 10.0
    assert sample.spread == pytest.approx(0.3)


def test_results_keep_order_and_every_value() -> None:
    results = Results()
    results.add("b", {"speed": 1.0})
    results.add("a", {"speed": 3.0, "start": 0.5})
    results.add("b", {"speed": 2.0})
    assert (results.engines, results.measures) == (["b", "a"], ["speed", "start"])
    assert results.sample("b", "speed") == Sample((1.0, 2.0))
    assert results.sample("b", "start") is None
    assert results.as_json()["speed"]["b"] == {"median": 1.5, "spread": 0.667, "values": [1.0, 2.0]}


def test_sides_take_turns() -> None:
    assert list(interleave(2, [("a", lambda: 1), ("b", lambda: 2)])) == [("a", 1), ("b", 2), ("a", 1), ("b", 2)]


def test_a_childs_work_is_not_others_work() -> None:
    """Busy loops of our own children leave what others use as it was, up to the clock's coarse ticks."""
    contention = Contention()
    with contention.watched():
        subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert len(contention.seen) == 1
    assert contention.worst >= 0.0


def test_a_disturbed_stretch_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    contention, others, taken = Contention(allowed=0.5), iter([0.9, 0.1, 2.0, 0.7, 0.6]), itertools.count(1)

    @contextmanager
    def watched() -> Iterator[None]:
        yield
        contention.seen.append(next(others))

    monkeypatch.setattr(contention.__class__, "watched", lambda self: watched())
    monkeypatch.setattr(contention.__class__, "_wait", lambda self: None)
    assert contention.calm(lambda: next(taken)) == 2
    assert contention.calm(lambda: next(taken)) == 5, "the third try counts, disturbed or not"
    assert (contention.seen, contention.repeated, contention.worst) == ([0.1, 0.6], 3, 0.6)


def test_tables_align() -> None:
    assert table(["", "rate"], [["prefill", "12"], ["x", "1234"]]) == "         rate\nprefill    12\nx        1234"
