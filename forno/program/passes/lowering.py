"""From what a model says to what its weights' formats need. Not optional: linears read the type their weights want."""

from __future__ import annotations

from dataclasses import replace

from forno.program.formats import FORMATS
from forno.program.ops import Linear, Quantize, SampleHead
from forno.program.passes.rewrite import Rewrite
from forno.program.program import Program


def activation_types(program: Program) -> Program:
    """Put a ``Quantize`` in front of every linear whose weights want s8, s8_row or bf16: one per distinct input and type."""
    rewrite = Rewrite(program)
    converted: dict[tuple[str, str], str] = {}
    for op in program.ops:
        if not isinstance(op, (Linear, SampleHead)):
            continue
        weights = op.weights if isinstance(op, Linear) else (op.weight,)
        wanted = {FORMATS[program.weights[w].format].activation for w in weights}
        assert len(wanted) == 1, f"{op} mixes weights that want different inputs: {wanted}"
        dtype = wanted.pop()
        value = program.values[op.x]
        if dtype == value.dtype:
            continue
        if (op.x, dtype) in converted:
            rewrite.replace(op, replace(op, x=converted[op.x, dtype]))
            continue
        out = rewrite.value_like(value, f"{op.x}.{dtype}", dtype=dtype).name
        converted[op.x, dtype] = out
        rewrite.replace(op, Quantize(out, op.x), replace(op, x=out))
    return rewrite.finish("activation_types")
