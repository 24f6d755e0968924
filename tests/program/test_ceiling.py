"""The least time of ops and steps, from costs and ceilings."""

from __future__ import annotations

import pytest

from forno.program.ceiling import Ceiling
from forno.program.shape import Cost, StepShape
from tests.helpers.runners import Model

FAST = 1e30


def test_a_whole_step_takes_its_arithmetic_or_its_bytes_whichever_is_longer() -> None:
    program, shape = Model.tiny(format="q4_1", kv="bf16").program, StepShape.decode(4, 30)
    cost = program.cost(shape)
    slow_memory = Ceiling(FAST, FAST, FAST, 1e6, FAST)
    assert slow_memory.step(program, shape) == pytest.approx((cost.weight_bytes + cost.kv_bytes) / 1e6)
    slow_units = Ceiling(1e6, 1e6, 1e6, FAST, FAST)
    assert slow_units.step(program, shape) == pytest.approx(cost.flops / 1e6)


def test_an_op_is_limited_by_the_slowest_of_three() -> None:
    ceiling = Ceiling(int8=10.0, bf16=5.0, fp32=2.0, dram=4.0, l3=8.0)
    assert ceiling.limit(Cost(int8=10, bf16=5, fp32=2)) == pytest.approx(3.0)
    assert ceiling.limit(Cost(int8=10, weight_bytes=12, kv_bytes=8)) == pytest.approx(5.0)
    assert ceiling.limit(Cost(int8=10, activation_bytes=64)) == pytest.approx(8.0)


def test_a_step_of_ops_takes_no_less_than_the_coarse_one() -> None:
    program, ceiling = Model.tiny(format="q8_0", kv="bf16").program, Ceiling(2e12, 1e12, 5e11, 4e10, 1e11)
    for shape in (StepShape.decode(1, 20), StepShape.decode(16, 20), StepShape.prefill(64)):
        assert ceiling.step_by_op(program, shape) >= ceiling.step(program, shape) > 0


def test_ceilings_are_joined() -> None:
    assert Ceiling(1, 5, 2, 7, 1) | Ceiling(3, 4, 2, 8, 0) == Ceiling(3, 5, 2, 8, 1)
    assert Ceiling(1, 5, 2, 7, 1).mean(Ceiling(3, 5, 4, 9, 0)) == Ceiling(2, 5, 3, 8, 0.5)
