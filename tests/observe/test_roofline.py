"""A step's time taken apart: parts sum to its wall time whatever the clocks say, and go to the label that they belong to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forno.kernels.cpu.buffers import legalize
from forno.observe.roofline import LABELS, Roofline
from forno.observe.step_time import EFFICIENCIES
from forno.program.ceiling import Ceiling
from forno.program.cost_model import CostModel
from forno.program.shape import Span, StepShape
from tests.helpers.runners import Model
from tests.helpers.steps import step_record

PROGRAM = legalize(Model.tiny(format="q4_1", kv="bf16").program)
CEILING = Ceiling(int8=2e9, bf16=1e9, fp32=5e8, dram=5e7, l3=2e8)
ROOFLINE = Roofline(CostModel(PROGRAM), CEILING, 2, EFFICIENCIES["avx512"])
DECODE = [(100, 1)] * 4
TIMES = st.floats(0, 1, allow_nan=False)


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60)), min_size=1, max_size=4),
    TIMES,
    st.floats(1e-6, 1),
    TIMES,
    TIMES,
    st.floats(0, 5),
)
def test_parts_sum_to_the_wall_time(
    spans: list[tuple[int, int]], plan: float, seconds: float, output: float, masks: float, cpu: float
) -> None:
    step = step_record(spans, plan=plan, seconds=seconds, masks=min(masks, seconds), output=output, cpu=cpu)
    (found,) = ROOFLINE.analyse([step])
    assert list(found.parts) == list(LABELS)
    assert sum(found.parts.values()) == pytest.approx(step.end - step.start, rel=1e-12)
    assert min(found.parts.values()) >= 0
    assert found.parts[found.label] == max(found.parts.values())


def test_work_is_the_programs_own() -> None:
    shape = StepShape((Span(7, 5), Span(30, 1)), 2)
    (found,) = ROOFLINE.analyse([step_record([(7, 5), (30, 1)])])
    cost = PROGRAM.cost(shape)
    assert found.flops == pytest.approx(cost.flops)
    assert (found.weight_bytes, found.kv_bytes) == pytest.approx((cost.weight_bytes, cost.kv_bytes))
    assert found.activation_bytes == pytest.approx(cost.activation_bytes)
    assert found.intensity == pytest.approx(cost.flops / (cost.weight_bytes + cost.kv_bytes))
    assert found.roofline == pytest.approx(CEILING.step_by_op(PROGRAM, shape))
    assert found.share == pytest.approx(found.roofline / 0.01)
    assert found.predicted == pytest.approx(ROOFLINE.predict([(7, 30)], [(5, 1)], [2])[0])
    assert found.residual == pytest.approx(0.01 / found.predicted)


def test_what_happens_outside_of_the_native_call_is_overhead() -> None:
    plain, loaded = ROOFLINE.analyse([step_record(DECODE), step_record(DECODE, plan=0.002, output=0.003, masks=0.001)])
    scale = 0.009 / 0.01  # of the ten milliseconds inside, one is for masks
    expected = plain.parts["overhead"] * scale + 0.002 + 0.003 + 0.001
    assert loaded.parts["overhead"] == pytest.approx(expected)
    assert loaded.measured == pytest.approx(0.009)


def test_missing_processor_time_is_starved_and_nothing_else() -> None:
    fair, starved = ROOFLINE.analyse([step_record(DECODE, seconds=0.01), step_record(DECODE, seconds=0.015, cpu=0.02)])
    assert fair.parts["starved"] == 0
    assert starved.parts["starved"] == pytest.approx(0.005)
    for label in LABELS[:-1]:
        assert starved.parts[label] == pytest.approx(fair.parts[label])
    assert ROOFLINE.analyse([step_record(DECODE, seconds=0.01, cpu=0.001)])[0].label == "starved"
    assert ROOFLINE.analyse([step_record(DECODE, seconds=0.01, cpu=0.0)])[0].parts["starved"] == 0, "0 is unknown"


def test_labels_follow_what_binds() -> None:
    steps = {
        "weights": step_record([(5, 1)]),
        "compute": step_record([(0, 90)]),
        "overhead": step_record([(5, 1)], plan=0.02),
        "kv": step_record([(250, 1)] * 64),
    }
    found = ROOFLINE.analyse(list(steps.values()))
    assert [step.label for step in found] == list(steps)


def test_a_slower_step_is_charged_to_what_binds_it() -> None:
    fast, slow = ROOFLINE.analyse([step_record(DECODE, seconds=0.01), step_record(DECODE, seconds=0.02)])
    assert {label: 2 * part for label, part in fast.parts.items()} == pytest.approx(slow.parts)
    assert slow.residual == pytest.approx(2 * fast.residual)


def test_clocks_that_disagree_do_no_harm() -> None:
    """Two clocks may tick differently, and a test's may stand still."""
    broken = step_record(DECODE, seconds=0.01)
    broken.end = broken.start
    (found,) = ROOFLINE.analyse([broken])
    assert set(found.parts.values()) == {0.0}
    assert found.share == 0


def test_no_steps() -> None:
    assert ROOFLINE.analyse([]) == []
