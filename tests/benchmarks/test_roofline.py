"""Op times summed by kind, next to their limits."""

from __future__ import annotations

import pytest

from benchmarks.roofline import by_kind
from forno.program.ceiling import Ceiling
from forno.program.shape import StepShape
from tests.helpers.runners import Model


def test_times_are_summed_by_kind_with_their_limits() -> None:
    program, shape = Model.tiny(format="q8_0", kv="bf16").program, StepShape.decode(3, 9)
    ceiling = Ceiling(1e9, 1e9, 1e9, 1e9, 1e9)
    found = by_kind(program, shape, [(op, 2e-6) for op in program.ops], ceiling)
    assert sum(k.count for k in found) == len(program.ops)
    assert sum(k.seconds for k in found) == pytest.approx(2e-6 * len(program.ops))
    assert sum(k.limit for k in found) == pytest.approx(ceiling.step_by_op(program, shape))
    down = next(k for k in found if k.kind == "down")
    assert down.fraction == pytest.approx(down.limit / down.seconds)
    assert down.rate == (pytest.approx(down.cost.weight_bytes / down.seconds), "B/s")
