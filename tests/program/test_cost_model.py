"""Costs of many steps at once against ``program.cost`` of each, for random programs and steps."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.kernels.cpu.buffers import legalize
from forno.models import build_program
from forno.program.ceiling import Ceiling
from forno.program.cost_model import KV, CostModel, kind
from forno.program.passes import apply, default_passes
from forno.program.program import Program
from forno.program.shape import Span, StepShape
from tests.helpers.models import CONFIGS
from tests.helpers.runners import Model

FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_1", "w8a8")
SPANS = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60)), min_size=0, max_size=5)
STEPS = st.lists(st.tuples(SPANS, st.integers(0, 70)), min_size=1, max_size=6)


def features_of(model: CostModel, shapes: list[StepShape]) -> np.ndarray:
    starts = [[span.start for span in shape.spans] for shape in shapes]
    tokens = [[span.num_tokens for span in shape.spans] for shape in shapes]
    return model.features(starts, tokens, [shape.outputs for shape in shapes])


def make(name: str, form: str, kv: str, disable: set[str]) -> Program:
    program = build_program(CONFIGS[name])
    program = program.with_formats(dict.fromkeys(program.weights, form)).with_kv_dtype(kv)
    return legalize(apply(program, disable))


@settings(max_examples=80)
@given(
    st.sampled_from(sorted(CONFIGS)),
    st.sampled_from(FORMATS),
    st.sampled_from(["bf16", "int8", "float32"]),
    st.sets(st.sampled_from(default_passes())),
    STEPS,
)
def test_costs_are_those_of_the_program(
    name: str, form: str, kv: str, disable: set[str], steps: list[tuple[list[tuple[int, int]], int]]
) -> None:
    program = make(name, form, kv, disable)
    model, shapes = CostModel(program), [StepShape(tuple(Span(*s) for s in spans), outputs) for spans, outputs in steps]
    features = features_of(model, shapes)
    costs, ceiling = model.costs(features), Ceiling(3e6, 2e6, 1e6, 5e5, 2e6)
    assert costs.shape == (6, len(model.kinds), len(shapes))
    limits = model.limits(costs, ceiling)
    for i, shape in enumerate(shapes):
        assert costs[:, :, i].sum(1) == pytest.approx(astuple(program.cost(shape)), rel=1e-12, abs=1e-9)
        assert limits[:, i].sum() == pytest.approx(ceiling.step_by_op(program, shape), rel=1e-12)


def test_layers_are_one_kind_unless_they_differ() -> None:
    model = CostModel(make("llama", "q4_1", "bf16", set()))
    counts = {k.name: k.count for k in model.kinds}
    assert counts["qkv"] == counts["attention"] == 2
    assert sum(k.count for k in model.kinds) == model.num_ops
    windowed = CostModel(make("qwen2-window", "q4_1", "bf16", set()))
    assert windowed.windows == (0, 5)
    assert [k.count for k in windowed.kinds if k.name == "attention"] == [1, 1]


def test_kinds_know_their_rows_and_their_cache() -> None:
    model = CostModel(make("llama", "q8_0", "int8", set()))
    found = {k.name: (k.axis.value, k.cache) for k in model.kinds}
    assert found["head"] == ("outputs", "")
    assert found["qkv"] == ("rows", "")
    assert found["attention"] == ("rows", "int8")


def test_no_steps_and_a_step_of_nothing() -> None:
    model = CostModel(make("llama", "q8_0", "bf16", set()))
    assert model.costs(model.features([], [], [])).shape == (6, len(model.kinds), 0)
    nothing = model.costs(model.features([()], [()], [0]))
    assert nothing[0:3].sum() == 0
    assert nothing[3].sum() > 0, "weights are read whatever the rows"


def test_kinds_are_alike_in_every_layer() -> None:
    fused = [kind(op) for op in Model.tiny(format="q8_0").program.ops]
    assert {"qkv", "o", "gate|up", "down", "head", "rms_norm", "qkv_prepare"} <= set(fused)
    assert fused.count("qkv") == fused.count("down") == 2


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_keys_that_are_read_for_several_sequences_cost_bytes_once(name: str) -> None:
    """Layers with a window share nothing."""
    program = make(name, "bf16", "bf16", set())
    model = CostModel(program)
    steps = [[300, 300, 300]], [[1, 1, 1]], [3]
    apart, together = model.costs(model.features(*steps)), model.costs(model.features(*steps, shared_keys=[2 * 256]))
    windowed = 0 not in model.windows
    saved = (apart - together).sum((1, 2))
    assert saved[KV] == (0 if windowed else 512 * program.kv_bytes_per_token)
    assert saved.sum() == saved[KV]
