"""Ratios over rounds: drift cancels, and the noise is told from the signal."""

from __future__ import annotations

import random
from math import inf, log

import pytest

from forno.bench.ablate.noise import log_ratios, pooled, ratios


def test_linear_drift_cancels_between_two_baselines() -> None:
    """A machine that slows down by the same factor from visit to visit."""
    drift = [1.0, 1.1, 1.21]
    assert log_ratios([2 * drift[1]], [drift[0]], [drift[2]]) == [pytest.approx(log(2))]


def test_rounds_without_a_number_do_not_count() -> None:
    assert log_ratios([1.0, None, 0.0, 1.0], [1.0, 1.0, 1.0, None], [1.0] * 4) == [0.0]


def test_one_round_says_nothing_of_noise() -> None:
    found = ratios({"a": [log(2)]})["a"]
    assert (found.value, found.low, found.high, found.real) == (pytest.approx(2.0), None, None, False)
    assert found.spread == inf


def test_a_spread_is_shared() -> None:
    spread, degrees = pooled({"a": [0.0, 0.2], "b": [1.0, 1.2], "c": [5.0]})
    assert (spread, degrees) == (pytest.approx(0.2 / 2**0.5), 2)


def test_most_arms_without_effect_are_within_the_noise_and_an_effect_is_not() -> None:
    rng = random.Random(7)
    false, missed = 0, 0
    for _ in range(100):
        groups = {str(i): [rng.gauss(0.0, 0.05) for _ in range(3)] for i in range(10)}
        groups["effect"] = [rng.gauss(log(1.4), 0.05) for _ in range(3)]
        found = ratios(groups)
        false += sum(found[str(i)].real for i in range(10))
        missed += not found["effect"].real
    assert false < 80, "about 50 of 1,000"
    assert missed == 0


def test_an_arm_that_varies_more_than_the_others_has_its_own_noise() -> None:
    calm = {str(i): [0.0, 0.001, -0.001] for i in range(10)}
    wild = ratios({**calm, "wild": [0.4, -0.2, 0.3]})["wild"]
    assert not wild.real
