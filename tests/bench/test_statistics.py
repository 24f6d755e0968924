"""Percentiles against numpy, Student's t against tables, and intervals against what they promise."""

from __future__ import annotations

from math import exp, inf, isnan, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.bench.statistics import (
    Difference,
    confidence,
    deviation,
    finite,
    mean,
    multiplied,
    paired,
    percentile,
    percentiles,
    student_t,
    welch,
)

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@settings(max_examples=50, deadline=None)
@given(NUMBERS, st.floats(0, 1))
def test_percentiles_are_numpys(values: list[float], q: float) -> None:
    assert percentile(values, q) == pytest.approx(np.quantile(values, q), rel=1e-9, abs=1e-9)
    assert percentiles(values, [q, 1.0]) == [percentile(values, q), max(values)]


def test_nothing_measured_is_nan_and_never_zero() -> None:
    assert isnan(percentile([], 0.5))
    assert isnan(mean([]))
    assert isnan(deviation([1.0]))
    assert [isnan(v) for v in confidence([])] == [True, True]
    middle, half = confidence([3.0])
    assert middle == 3
    assert isnan(half)
    assert [finite(v) for v in (None, half, inf, 0.0)] == [False, False, False, True]


@pytest.mark.parametrize(
    ("degrees", "t"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (29, 2.045), (120, 1.980), (5000, 1.960)],
)
def test_students_t_is_the_tables(degrees: int, t: float) -> None:
    assert student_t(degrees) == pytest.approx(t, abs=6e-4)


def test_students_t_of_other_levels() -> None:
    assert student_t(4, 0.99) == pytest.approx(4.604, abs=6e-4)
    assert student_t(9, 0.9) == pytest.approx(1.833, abs=6e-4)
    assert student_t(0) == inf


def test_confidence_of_a_small_sample() -> None:
    middle, half = confidence([10.0, 12.0, 14.0])
    assert middle == 12
    assert half == pytest.approx(4.303 * 2 / 3**0.5, rel=1e-3)


def test_intervals_hold_the_truth_as_often_as_they_promise() -> None:
    rng = np.random.default_rng(7)
    samples = rng.normal(5, 2, (2000, 4))
    held = [abs(middle - 5) <= half for middle, half in map(confidence, samples.tolist())]
    assert 0.93 < np.mean(held) < 0.97
    same = [welch(a, b).real for a, b in zip(samples[::2].tolist(), samples[1::2].tolist(), strict=True)]
    assert 0.01 < np.mean(same) < 0.06


def test_welch_sees_a_difference_larger_than_the_noise() -> None:
    d = welch([100, 102, 98], [120, 121, 119])
    assert d.real
    assert d.change == 20
    assert d.ratio == 1.2
    # Variances of the means 4/3 and 1/3, so 2.9 degrees of freedom, rounded down.
    half = 4.3027 * (5 / 3) ** 0.5
    assert (d.low, d.high) == (pytest.approx(20 - half, rel=1e-4), pytest.approx(20 + half, rel=1e-4))
    assert d.basis == "repeats"


def test_welch_sees_none_within_it() -> None:
    assert not welch([100, 120, 80], [105, 125, 95]).real


def test_equal_repeats_leave_no_noise() -> None:
    assert welch([2, 2], [2, 2]) == Difference(a=2, b=2, low=0, high=0, basis="repeats")
    assert welch([2, 2], [3, 3]).real


def test_one_run_each_says_nothing_of_the_noise() -> None:
    d = welch([1.0], [100.0])
    assert not d.real
    assert (d.low, d.high, d.basis) == (-inf, inf, "nothing")


def test_a_ratio_to_zero_is_nan() -> None:
    assert isnan(Difference(a=0, b=1, low=1, high=1, basis="repeats").ratio)


def test_pairs_cancel_what_they_share() -> None:
    a, b = [10.0, 20.0, 30.0, 40.0], [11.0, 21.0, 31.1, 41.0]
    assert paired(a, b).real
    assert paired(a, b).basis == "pairs"
    assert not welch(a, b).real
    assert paired([1.0], [2.0]).basis == "nothing"


def test_noise_that_multiplies_is_told_by_ratios() -> None:
    d = multiplied([100.0, 200.0, 400.0], [3000.0, 5000.0, 12000.0], welch)
    assert d.a == pytest.approx(200)
    assert d.real
    assert d.low > 0
    logarithms = welch([log(v) for v in (100, 200, 400)], [log(v) for v in (3000, 5000, 12000)])
    assert (d.low, d.high) == tuple(pytest.approx(200 * (exp(side) - 1)) for side in (logarithms.low, logarithms.high))
    assert not welch([100.0, 200.0, 400.0], [3000.0, 5000.0, 12000.0]).real
    less = multiplied([3000.0, 5000.0, 12000.0], [100.0, 200.0, 400.0], welch)
    assert -less.a < less.low < less.high < 0
    assert multiplied([1.0], [2.0], welch).high == inf
    assert finite(multiplied([1e-300, 1e300], [1.0, 1.0], welch).high)
