"""What makes a program well-formed: names resolve, order is sound, shapes and types fit. Knows no backend.

A failure is a bug in a model file or a pass, never in a user's input, hence ``AssertionError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forno.program import ops
from forno.program.ops import Op
from forno.program.shape import Axis

if TYPE_CHECKING:
    from forno.program.program import Program


WRITE_WHOLE_ROWS = (ops.Quantize, ops.RmsNorm, ops.SiluMul, ops.GatherRows)
"""Ops that a backend computes a row at a time. The others' results come in parts, none of which knows a row's largest value."""


def check_program(program: Program) -> None:
    """Raise ``AssertionError`` naming the op that breaks a rule."""
    defined = {"token_ids", "positions"}
    filled: set[str] = set()
    for op in program.ops:
        for name in op.inputs:
            assert name in defined, f"{op} reads {name} before it is defined"
        for name in op.weight_names:
            assert name in program.weights, f"{op} names an unknown weight {name}"
        for name in op.outputs:
            assert name in program.values, f"{op} writes the undeclared value {name}"
            assert program.values[name].name == name, f"{name} is declared under another name"
            assert name not in defined, f"{name} is defined twice"
            defined.add(name)
        _check_cache(program, op, filled)
        _check_shapes(program, op)
    assert set(program.values) <= defined, f"{set(program.values) - defined} are declared, but nothing writes them"


def _check_cache(program: Program, op: Op, filled: set[str]) -> None:
    """Attention must come after the op that stores this step's keys and values: the order is not in the values."""
    if isinstance(op, (ops.KvWrite, ops.QkvPrepare, ops.Attention)):
        assert op.cache in program.caches, f"{op} names an unknown cache"
        if isinstance(op, ops.Attention):
            assert op.cache in filled, f"{op} reads {op.cache} before this step's keys and values are in it"
        else:
            assert op.cache not in filled, f"{op} fills {op.cache} twice"
            filled.add(op.cache)
    if isinstance(op, (ops.Rope, ops.QkvPrepare)):
        assert op.rope in program.ropes, f"{op} names an unknown rope"
        assert program.ropes[op.rope].dim <= op.head_dim, f"{op} rotates more columns than a head has"


def _check_shapes(program: Program, op: Op) -> None:
    values, weights = program.values, program.weights
    width = {n: values[n].width for n in op.inputs + op.outputs if n in values}
    for name in op.outputs:
        dtype = values[name].dtype
        assert dtype not in ("s8", "s8_row") or values[name].width % 32 == 0, f"{op}: {dtype} needs a width that 32 divides"
        assert dtype != "s8_row" or isinstance(op, WRITE_WHOLE_ROWS), f"{op} does not see the whole row that s8_row scales"
    if not isinstance(op, (ops.Linear, ops.SampleHead, ops.GatherRows)):
        wide = [n for n in op.inputs if n in values and values[n].dtype != "f32"]
        assert not wide, f"{op} reads {wide}, which only a linear can"
    match op:
        case ops.Embed():
            fits = width[op.out] == weights[op.weight].shape[1]
        case ops.RmsNorm():
            group = op.group or width[op.x]
            fits = width[op.x] == width[op.out] and width[op.x] % group == 0 and weights[op.weight].shape == (group,)
        case ops.Linear():
            fits = _linear_fits(program, op)
        case ops.SampleHead():
            fits = weights[op.weight].shape[1] == width[op.x] and values[op.out].axis is Axis.OUTPUTS
        case ops.Split():
            fits = sum(width[o] for o in op.outs) == width[op.x]
        case ops.Rope():
            fits = width[op.x] == width[op.out] == op.heads * op.head_dim
        case ops.KvWrite():
            cache = program.caches[op.cache]
            fits = width[op.k] == cache.kv_heads * cache.k_dim and width[op.v] == cache.kv_heads * cache.v_dim
        case ops.QkvPrepare():
            fits = width[op.x] == (op.heads + 2 * op.kv_heads) * op.head_dim and width[op.out] == op.heads * op.head_dim
        case ops.Attention():
            fits = width[op.q] == op.heads * op.head_dim and op.heads % op.kv_heads == 0
        case ops.GatherRows():
            fits = (
                width[op.x] == width[op.out]
                and values[op.x].dtype == values[op.out].dtype
                and values[op.out].axis is Axis.OUTPUTS
            )
        case ops.Quantize() | ops.Add() | ops.SiluMul():
            fits = len(set(width.values())) == 1
        case _:
            fits = True
    assert fits, f"the shapes of {op} do not fit: {width}"


def _linear_fits(program: Program, op: ops.Linear) -> bool:
    shapes = [program.weights[w].shape for w in op.weights]
    columns = sum(n for n, _ in shapes)
    if op.activation is not None:
        if op.activation != "silu_mul" or len(shapes) != 2 or shapes[0] != shapes[1]:
            return False
        columns = shapes[0][0]
    biases = all(b is None or program.weights[b].shape == (n,) for b, (n, _) in zip(op.biases, shapes, strict=True))
    residual = op.residual is None or program.values[op.residual].width == columns
    x = program.values[op.x].width
    return biases and residual and columns == program.values[op.out].width and all(k == x for _, k in shapes)
