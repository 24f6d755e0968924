"""Passes: each finds what it is for, and any subset in any order leaves every bit of the result as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.errors import ConfigError
from forno.kernels.reference.executor import ReferenceExecutor
from forno.models import build_program
from forno.program import ops
from forno.program.passes import PASSES, activation_types, apply, default_passes, pass_names
from forno.program.program import Program
from forno.program.shape import Axis, StepShape
from tests.helpers.models import CONFIGS, batch_of, tiny_weights, tokens_for


def tiny(name: str, formats: dict[str, str] | str = "q8_0") -> Program:
    program = build_program(CONFIGS[name])
    return program.with_formats(dict.fromkeys(program.weights, formats) if isinstance(formats, str) else formats)


def kinds(program: Program) -> list[str]:
    return [type(op).__name__ for op in program.ops]


def test_all_passes_make_the_shortest_layer() -> None:
    layer = ["RmsNorm", "Linear", "QkvPrepare", "Attention", "Linear", "RmsNorm", "Linear", "Linear"]
    for name in CONFIGS:
        program = apply(tiny(name))
        last = [*layer[:4], "GatherRows", "GatherRows", *layer[4:]]
        assert kinds(program) == ["Embed", *layer, *last, "RmsNorm", "SampleHead"]
        assert program.passes == ("activation_types", *default_passes())


def test_lowering_quantizes_each_input_once() -> None:
    program = activation_types(tiny("llama"))
    quantized = [op.x for op in program.ops if isinstance(op, ops.Quantize)]
    assert len(quantized) == len(set(quantized)) == 2 * 4 + 1  # per layer: two norms, attention, silu_mul; and the head
    assert {program.values[op.x].dtype for op in program.ops if isinstance(op, ops.Linear)} == {"s8"}


def test_lowering_leaves_f32_and_f16_linears_alone() -> None:
    for form in ("f32", "f16"):
        assert ops.Quantize.__name__ not in kinds(activation_types(tiny("llama", form)))


def test_rows_with_one_scale_are_made_by_ops_that_see_them_whole() -> None:
    """Norms write them; attention and the gated linear write f32, and a ``Quantize`` follows."""
    program = apply(tiny("llama", "w8a8"))
    wide = {op.out: kind for op, kind in zip(program.ops, kinds(program), strict=True) if hasattr(op, "out")}
    made = [wide[name] for name, value in program.values.items() if value.dtype == "s8_row"]
    assert sorted(made) == ["Quantize"] * 4 + ["RmsNorm"] * 5
    unfused = apply(tiny("llama", "w8a8"), disable=("gate_up",))
    assert kinds(unfused).count("Quantize") == 2  # silu * up, alone, sees whole rows


Q_AND_K_AS_Q8 = {f"model.layers.0.self_attn.{n}_proj.weight": "q8_0" for n in "qk"}


def test_inputs_of_two_types_are_made_twice_and_not_merged() -> None:
    program = tiny("llama", {"model.layers.0.self_attn.v_proj.weight": "bf16", **Q_AND_K_AS_Q8})
    lowered = activation_types(program)
    assert [lowered.values[op.out].dtype for op in lowered.ops if isinstance(op, ops.Quantize)] == ["s8", "bf16"]
    assert [op.out for op in apply(program).ops if isinstance(op, ops.QkvPrepare)] == ["1.q_proj.rope"]


def test_gate_and_up_of_different_formats_stay_apart() -> None:
    mixed = {"model.layers.0.mlp.gate_proj.weight": "q8_0", "model.layers.0.mlp.up_proj.weight": "q4_0"}
    program = apply(tiny("llama", mixed))
    fused = [op for op in program.ops if isinstance(op, ops.Linear) and op.activation]
    assert [op.out for op in fused] == ["1.silu_mul"]


def test_qkv_of_different_formats_merge_if_they_read_the_same_type() -> None:
    formats = dict(Q_AND_K_AS_Q8, **{"model.layers.0.self_attn.v_proj.weight": "q4_1"})
    merged = next(op for op in apply(tiny("llama", formats)).ops if isinstance(op, ops.Linear))
    assert len(merged.weights) == 3


def test_each_pass_alone() -> None:
    expected = {
        "qkv": ("Linear", -4),
        "gate_up": ("SiluMul", -2),
        "qkv_prepare": ("QkvPrepare", 0),  # needs qkv
        "norm_quantize": ("Quantize", -5),
        "activation_quantize": ("Quantize", -4),
        "residual": ("Add", -4),
        "early_gather": ("GatherRows", 1),
        "sample_head": ("SampleHead", 1),
    }
    assert set(expected) == set(default_passes())
    before = kinds(apply(tiny("llama"), disable=default_passes()))
    for name, (kind, change) in expected.items():
        after = kinds(apply(tiny("llama"), disable=set(default_passes()) - {name}))
        assert after.count(kind) - before.count(kind) == change, name


def test_unknown_passes_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown pass qkw; passes are qkv, gate_up"):
        pass_names("residual, qkw")
    assert pass_names(" residual,qkv, ") == {"residual", "qkv"}


FORMATS = ["f32", "bf16", "q8_0", "q4_1", "w8a8"]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A tiny model with a format for all matrices, or one for each."""
    program = build_program(CONFIGS[draw(st.sampled_from(sorted(CONFIGS)))])
    uniform = draw(st.sampled_from([*FORMATS, None]))
    names = [n for n in program.weights if "norm" not in n]
    formats = {n: uniform or draw(st.sampled_from(FORMATS)) for n in names}
    return program.with_formats(formats).with_kv_dtype(draw(st.sampled_from(["bf16", "int8", "float32"])))


def outputs(program: Program) -> list[dict[str, Any]]:
    """Two steps: two prompts, then more of one and the other's next token, over interleaved blocks."""
    executor = ReferenceExecutor(program, tiny_weights(program), 8, 8)
    a, b = tokens_for(1, 14), tokens_for(2, 10)
    steps = [[(a[:9], 0, [5, 1]), (b[:9], 0, [2, 6])], [(b[9:], 9, [2, 6]), (a[9:], 9, [5, 1])]]
    return [executor.run(batch_of(parts)) for parts in steps]


@settings(max_examples=40)
@given(programs(), st.permutations(PASSES), st.integers(0, len(PASSES)))
def test_any_passes_in_any_order_keep_every_bit(program: Program, order: list[Any], count: int) -> None:
    plain = activation_types(program)
    fused = plain
    for step in order[:count]:
        fused = step.run(fused)
        fused.check_integrity()
    for expected, got in zip(outputs(plain), outputs(fused), strict=True):
        assert expected["logits"].tobytes() == got["logits"].tobytes()
        assert expected["sampled"].tolist() == got["sampled"].tolist()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("format", ["f32", "q4_1", "w8a8"])
def test_every_pass_leaves_a_sound_program(name: str, format: str) -> None:
    """``apply`` looks at the last only."""
    program = activation_types(tiny(name, format))
    program.check_integrity()
    for step in PASSES:
        program = step.run(program)
        program.check_integrity()
    assert program == apply(tiny(name, format))


def test_default_order_keeps_every_bit_and_the_caches() -> None:
    program = tiny("qwen3", "q4_1")
    results = []
    for off in ((), default_passes()):
        executor = ReferenceExecutor(apply(program, off), tiny_weights(program), 4, 8)
        logits = executor.run(batch_of([(tokens_for(3, 20), 0, [3, 0, 2])]))["logits"]
        results.append((logits, executor.caches["1.kv"].k, executor.caches["1.kv"].v))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.abs(results[0][1]).max() > 0


def test_a_prompts_rows_end_at_the_last_attention() -> None:
    program = apply(tiny("llama", "q4_1"))
    shape = StepShape.prefill(64)
    gathers = [i for i, op in enumerate(program.ops) if isinstance(op, ops.GatherRows)]
    last = max(i for i, op in enumerate(program.ops) if isinstance(op, ops.Attention))
    assert gathers == [last + 1, last + 2]
    assert all(program.values[name].axis is Axis.OUTPUTS for op in program.ops[last + 1 :] for name in op.outputs)
    without = apply(tiny("llama", "q4_1"), disable={"early_gather"})
    assert program.cost(shape).int8 < without.cost(shape).int8
    assert program.cost(StepShape.decode(8, 100)).int8 == without.cost(StepShape.decode(8, 100)).int8
