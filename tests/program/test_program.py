"""Well-formedness of programs, and holding weights in other formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from forno.errors import CheckpointError, UnsupportedError
from forno.models import build_program
from forno.program import ops
from forno.program.ops import Op
from forno.program.passes import apply
from forno.program.program import Program
from tests.helpers.models import CONFIGS


@pytest.fixture
def program() -> Program:
    return build_program(CONFIGS["llama"])


def test_formats_apply_to_matrices_only(program: Program) -> None:
    held = program.with_formats(dict.fromkeys(program.weights, "q8_0"))
    formats = {len(w.shape): w.format for w in held.weights.values()}
    assert formats == {1: "f32", 2: "q8_0"}
    assert program.weights["lm_head.weight"].format == "f32"  # the original is not touched


def test_formats_must_exist_and_fit(program: Program) -> None:
    with pytest.raises(UnsupportedError, match=r"lm_head.*iq1_s.*q4_0"):
        program.with_formats({"lm_head.weight": "iq1_s"})
    with pytest.raises(CheckpointError, match=r"lm_head.*rows of 96 .*256"):
        program.with_formats({"lm_head.weight": "q4_k"})


def first(program: Program, kind: type[Op]) -> int:
    return next(i for i, op in enumerate(program.ops) if isinstance(op, kind))


def without(kind: type[Op]) -> Callable[[Program], Program]:
    def damage(program: Program) -> Program:
        at = first(program, kind)
        return replace(program, ops=program.ops[:at] + program.ops[at + 1 :])

    return damage


def changed(kind: type[Op], **fields: object) -> Callable[[Program], Program]:
    def damage(program: Program) -> Program:
        at = first(program, kind)
        return replace(program, ops=(*program.ops[:at], replace(program.ops[at], **fields), *program.ops[at + 1 :]))

    return damage


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (without(ops.Embed), "before it is defined"),
        (without(ops.KvWrite), "before this step's keys"),
        (without(ops.Sample), "nothing writes them"),
        (changed(ops.Linear, weights=("nope",)), "unknown weight"),
        (changed(ops.Linear, biases=("model.norm.weight",), weights=("model.layers.0.self_attn.k_proj.weight",)), "do not fit"),
        (changed(ops.Linear, activation="gelu"), "do not fit"),
        (changed(ops.Linear, residual="nowhere"), "before it is defined"),
        (changed(ops.RmsNorm, group=7), "do not fit"),
        (changed(ops.Rope, rope="nope"), "unknown rope"),
        (changed(ops.Rope, heads=5), "do not fit"),
        (changed(ops.Attention, cache="nope"), "unknown cache"),
        (changed(ops.Attention, kv_heads=4), "do not fit"),
        (changed(ops.Add, out="0.attention"), "defined twice"),
        (changed(ops.GatherRows, x="0.silu_mul"), "do not fit"),
    ],
)
def test_damaged_programs_are_noticed(program: Program, damage: Callable[[Program], Program], complaint: str) -> None:
    program.check_integrity()
    with pytest.raises(AssertionError, match=complaint):
        damage(program).check_integrity()


def test_only_linears_read_quantized_values(program: Program) -> None:
    lowered = apply(program.with_formats(dict.fromkeys(program.weights, "q8_0")))
    norm = lowered.ops[first(lowered, ops.RmsNorm)]
    assert isinstance(norm, ops.RmsNorm)
    with pytest.raises(AssertionError, match="only a linear can"):
        changed(ops.QkvPrepare, x=norm.out)(lowered).check_integrity()
