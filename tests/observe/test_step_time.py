"""Predicted step times: what they are made of, and in which direction each constant pulls."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from forno.kernels.cpu.buffers import legalize
from forno.observe.step_time import EFFICIENCIES, FETCH_ROWS, StepTimeModel
from forno.program import ops
from forno.program.ceiling import Ceiling
from forno.program.cost_model import CostModel
from tests.helpers.runners import Model

MODEL = CostModel(legalize(Model.tiny(format="q4_1", kv="bf16").program))
CEILING = Ceiling(int8=2e9, bf16=1e9, fp32=5e8, dram=5e7, l3=2e8)
EFFICIENCY = EFFICIENCIES["avx512"]


def features(*steps: list[tuple[int, int]]) -> np.ndarray:
    starts, tokens = ([[part[i] for part in step] for step in steps] for i in (0, 1))
    return MODEL.features(starts, tokens, [len(step) for step in steps])


DECODE, PROMPT = features([(100, 1)] * 4), features([(0, 64)])


def test_every_instruction_set_has_constants_of_possible_size() -> None:
    assert set(EFFICIENCIES) == {"avx512", "avx2", "portable"}
    for efficiency in EFFICIENCIES.values():
        for field in fields(efficiency):
            value = getattr(efficiency, field.name)
            assert value > 0
            if field.name != "unpack_rows":
                assert value < (1e-3 if field.name.endswith("_seconds") else 1.7)


def test_parts_are_what_they_are_called() -> None:
    decode, prompt = (StepTimeModel(MODEL, CEILING, EFFICIENCY).predict(f) for f in (DECODE, PROMPT))
    assert prompt.compute > prompt.weights
    assert decode.kv > prompt.kv
    slow_memory = StepTimeModel(MODEL, replace(CEILING, dram=CEILING.dram / 10), EFFICIENCY).predict(DECODE)
    assert slow_memory.weights + slow_memory.kv > 5 * (decode.weights + decode.kv)
    assert slow_memory.compute < decode.compute
    assert slow_memory.fixed == decode.fixed


def test_nothing_is_faster_than_its_roofline() -> None:
    """Where nothing is hidden behind something else."""
    steps = features([(0, 15)], [(90, 1)], [(40, 1)] * 7)
    for l3 in (CEILING.dram, 1e12):
        ceiling = replace(CEILING, l3=l3)
        limits = MODEL.limits(MODEL.costs(steps), ceiling).sum(0)
        assert (StepTimeModel(MODEL, ceiling, EFFICIENCY).predict(steps).total > limits).all()


def test_many_steps_at_once_are_each_alone() -> None:
    together = StepTimeModel(MODEL, CEILING, EFFICIENCY).predict(np.concatenate([DECODE, PROMPT]))
    alone = [StepTimeModel(MODEL, CEILING, EFFICIENCY).predict(f) for f in (DECODE, PROMPT)]
    assert together.total == pytest.approx([a.total[0] for a in alone])


def test_kinds_sum_to_the_whole_but_for_what_is_hidden() -> None:
    model = StepTimeModel(MODEL, CEILING, EFFICIENCY)
    rest = EFFICIENCY.step_seconds + 4 * EFFICIENCY.row_seconds
    assert model.by_kind(DECODE).sum() + rest == pytest.approx(model.predict(DECODE).total[0])


def test_steps_of_many_rows_hide_reading_of_keys_and_values() -> None:
    open_, hidden = (StepTimeModel(MODEL, CEILING, replace(EFFICIENCY, fetched=share)) for share in (1e-9, 0.5))
    many, few = features([(200, 1)] * FETCH_ROWS), features([(200, 1)] * (FETCH_ROWS - 1))
    assert hidden.predict(many).kv < open_.predict(many).kv
    assert hidden.predict(few).kv == pytest.approx(open_.predict(few).kv)
    assert hidden.predict(many).kv >= 0.5 * open_.predict(many).kv


def test_unpacking_weights_takes_as_long_as_some_rows() -> None:
    no_memory = replace(CEILING, dram=1e30, l3=1e30)
    plain, unpacked = (StepTimeModel(MODEL, no_memory, replace(EFFICIENCY, unpack_rows=rows)) for rows in (0.0, 3.0))
    fixed = EFFICIENCY.op_seconds * MODEL.counts
    linear = [i for i, kind in enumerate(MODEL.kinds) if isinstance(kind.op, (ops.Linear, ops.SampleHead))]
    assert linear
    for steps, rows in ((features([(100, 1)]), 1), (DECODE, 4)):
        before, after = (model.by_kind(steps)[linear, 0] - fixed[linear] for model in (plain, unpacked))
        assert after == pytest.approx(before * (1 + 3 / rows))


@pytest.mark.parametrize(("kv", "constant", "other"), [("int8", "kv_int8", "kv"), ("bf16", "kv", "kv_int8")])
def test_each_type_of_cache_has_its_own_share_of_the_bandwidth(kv: str, constant: str, other: str) -> None:
    model = CostModel(legalize(Model.tiny(format="q4_1", kv=kv).program))
    steps = model.features([[100]], [[1]], [1])
    slow = {c: StepTimeModel(model, CEILING, replace(EFFICIENCY, **{c: 0.01})).predict(steps).kv for c in (constant, other)}
    plain = StepTimeModel(model, CEILING, EFFICIENCY).predict(steps).kv
    assert slow[constant] > 2 * plain
    assert slow[other] == plain
