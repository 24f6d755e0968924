"""A step's time as a line over its rows."""

from __future__ import annotations

import random

import pytest

from forno.scheduler.row_cost import FIRST_RATIO, RowCost


def test_before_the_first_step_it_is_the_usual() -> None:
    assert RowCost().ratio(1) == FIRST_RATIO
    assert RowCost().ratio(5) == FIRST_RATIO / (1 + 4 * FIRST_RATIO)


@pytest.mark.parametrize("ratio", [0.0, 0.05, 0.5, 1.0])
def test_the_line_is_found_in_noise(ratio: float) -> None:
    rng, cost = random.Random(0), RowCost()
    for _ in range(2000):
        rows = rng.choice([1, 1, 1, 2, 4, 9])
        cost.observe(rows, 0.002 * (1 + ratio * (rows - 1)) * rng.uniform(0.9, 1.1))
    assert cost.ratio(1) == pytest.approx(ratio, abs=0.02 + 0.05 * ratio)
    assert cost.ratio(9) == pytest.approx(ratio / (1 + 8 * ratio), abs=0.02)


def test_a_step_that_waited_for_a_core_teaches_little() -> None:
    cost = RowCost()
    for _ in range(100):
        cost.observe(1, 0.002)
        cost.observe(5, 0.0024)
    before = cost.ratio(1)
    cost.observe(5, 1.0)
    assert before == pytest.approx(0.05, abs=0.015)
    assert cost.ratio(1) < 2 * before


def test_steps_without_a_time_teach_nothing() -> None:
    cost = RowCost()
    cost.observe(3, 0.0)
    assert cost.ratio(1) == FIRST_RATIO
