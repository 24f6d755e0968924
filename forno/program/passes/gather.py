"""Dropping rows as soon as no later row can read them."""

from __future__ import annotations

from dataclasses import replace

from forno.program.ops import Add, GatherRows, Linear, Op, Quantize, RmsNorm, SiluMul
from forno.program.passes.rewrite import Graph, Rewrite
from forno.program.program import Program
from forno.program.shape import Axis

ROW_WISE = (Add, Linear, Quantize, RmsNorm, SiluMul)
"""Ops whose every output row depends on the same row of their inputs only."""
VALUE_FIELDS = ("a", "b", "gate", "out", "residual", "up", "x")
"""Where those ops name values."""
MOST_GATHERED = 2
"""Values that may be gathered in place of one: attention's result and the residual stream beside it."""


def early_gather(program: Program) -> Program:
    """``GatherRows`` moves up past the row-wise ops in front of it: to just after the last attention, since what follows
    is computed of each row alone. A prompt's other rows need only their keys and values there."""
    graph, rewrite = Graph(program), Rewrite(program)
    for op in program.ops:
        if isinstance(op, GatherRows):
            _move_up(graph, rewrite, program, op)
    return rewrite.finish("early_gather")


def _move_up(graph: Graph, rewrite: Rewrite, program: Program, gather: GatherRows) -> None:
    passed = _row_wise_before(graph, program, gather)
    computed = {name for op in passed for name in op.outputs}
    needed = list(dict.fromkeys(name for op in passed for name in op.inputs if name not in computed))
    if not passed or len(needed) > MOST_GATHERED:
        return
    wanted = passed[0].outputs[0] + ".rows"
    gathered = {name: rewrite.value_like(program.values[name], wanted, axis=Axis.OUTPUTS).name for name in needed}
    rewrite.replace(gather)
    for op in passed:
        (out,) = op.outputs
        if out != gather.x:
            rewrite.change(out, axis=Axis.OUTPUTS)
        copies = [GatherRows(gathered[name], name) for name in dict.fromkeys(op.inputs) if name in needed]
        needed = [name for name in needed if name not in op.inputs]  # each is gathered where it is first read
        rewrite.replace(op, *copies, _renamed(op, gathered, {gather.x: gather.out}))


def _row_wise_before(graph: Graph, program: Program, gather: GatherRows) -> list[Op]:
    """The row-wise ops that only ``gather`` depends on, directly or through others of them; in program order."""
    passed: set[Op] = {gather}
    for op in reversed(program.ops):
        readers = [reader for name in op.outputs for reader in graph.readers(name)]
        if isinstance(op, ROW_WISE) and readers and all(reader in passed for reader in readers):
            passed.add(op)
    return [op for op in program.ops if op in passed and op is not gather]


def _renamed(op: Op, inputs: dict[str, str], outputs: dict[str, str]) -> Op:
    """``op`` reading and writing other names."""
    names = {**{n: inputs.get(n, n) for n in op.inputs}, **{n: outputs.get(n, n) for n in op.outputs}}
    fields = [field for field in VALUE_FIELDS if getattr(op, field, None) is not None]
    return replace(op, **{field: names[getattr(op, field)] for field in fields})
