"""Folding ``Quantize`` into the op that writes its input: one trip to memory less, and the values sent are smaller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from forno.program.check import WRITE_WHOLE_ROWS
from forno.program.ops import Attention, Linear, Op, Quantize, RmsNorm, SiluMul
from forno.program.passes.rewrite import Graph, Rewrite
from forno.program.program import Program


def norm_quantize(program: Program) -> Program:
    """``RmsNorm`` then ``Quantize`` -> ``RmsNorm`` with an s8, s8_row or bf16 output."""
    return _fold(program, "norm_quantize", lambda op: isinstance(op, RmsNorm))


def activation_quantize(program: Program) -> Program:
    """The same for the gated activation (fused into a linear or not) and for attention, where they can."""
    return _fold(program, "activation_quantize", _is_activation)


def _is_activation(op: Op) -> bool:
    return isinstance(op, (SiluMul, Attention)) or (isinstance(op, Linear) and op.activation is not None)


def _fold(program: Program, name: str, matches: Callable[[Op], bool]) -> Program:
    graph, rewrite = Graph(program), Rewrite(program)
    for op in program.ops:
        if not isinstance(op, Quantize) or not graph.is_private(op.x):
            continue
        producer = graph.producer[op.x]
        if matches(producer) and (graph.values[op.out].dtype != "s8_row" or isinstance(producer, WRITE_WHOLE_ROWS)):
            rewrite.replace(producer, replace(producer, out=op.out))  # type: ignore[call-arg]
            rewrite.replace(op)
    return rewrite.finish(name)
