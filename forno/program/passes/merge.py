"""Merging linears that read the same value: the input is read once, and small matrices make one large one."""

from __future__ import annotations

from forno.program.ops import Attention, KvWrite, Linear, RmsNorm, Rope, SiluMul, Split
from forno.program.passes.rewrite import Graph, Rewrite
from forno.program.program import Program


def qkv(program: Program) -> Program:
    """q, k and v of a layer -> one ``Linear`` and a ``Split`` that keeps their names. Formats may differ."""
    graph, rewrite = Graph(program), Rewrite(program)
    queries = {op.cache: op.q for op in program.ops if isinstance(op, Attention)}
    for op in program.ops:
        if not isinstance(op, KvWrite) or op.cache not in queries:
            continue
        parts = [_origin(graph, name) for name in (queries[op.cache], op.k, op.v)]
        linears = [p for p in parts if p is not None]
        if len(linears) < 3 or len(set(linears)) < 3 or len({p.x for p in linears}) > 1:
            continue
        outs = [program.values[p.out] for p in linears]
        merged = rewrite.value_like(outs[0], _beside(linears[0].out, "qkv"), width=sum(v.width for v in outs))
        weights = tuple(w for p in linears for w in p.weights)
        biases = tuple(b for p in linears for b in p.biases)
        first = min(linears, key=program.ops.index)
        rewrite.remove(p for p in linears if p is not first)
        split = Split(tuple(v.name for v in outs), merged.name)
        rewrite.replace(first, Linear(merged.name, linears[0].x, weights, biases), split)
    return rewrite.finish("qkv")


def gate_up(program: Program) -> Program:
    """gate, up and ``SiluMul`` -> one ``Linear``, if both weights have the same format and shape."""
    graph, rewrite = Graph(program), Rewrite(program)
    for op in program.ops:
        if not isinstance(op, SiluMul) or op.gate == op.up:
            continue
        gate, up = _plain(graph, op.gate), _plain(graph, op.up)
        if gate is None or up is None or gate.x != up.x or len(gate.weights + up.weights) != 2:
            continue
        if program.weights[gate.weights[0]] != program.weights[up.weights[0]]:
            continue
        if not (graph.is_private(op.gate) and graph.is_private(op.up)) or graph.values[op.out].dtype == "s8_row":
            continue  # a linear's columns are computed apart: none sees the row that s8_row scales
        rewrite.remove((gate, up))
        merged = Linear(op.out, gate.x, gate.weights + up.weights, gate.biases + up.biases, activation="silu_mul")
        rewrite.replace(op, merged)
    return rewrite.finish("gate_up")


def _plain(graph: Graph, value: str) -> Linear | None:
    """The linear that writes ``value``, if it has no epilogue."""
    op = graph.producer.get(value)
    plain = isinstance(op, Linear) and op.residual is None and op.activation is None
    return op if plain and graph.values[value].dtype == "f32" else None  # type: ignore[return-value]


def _origin(graph: Graph, value: str) -> Linear | None:
    """The linear whose output becomes ``value`` by norm and rope alone."""
    op = graph.producer.get(value)
    while isinstance(op, (Rope, RmsNorm)):
        value = op.x
        op = graph.producer.get(value)
    return _plain(graph, value)


def _beside(name: str, other: str) -> str:
    """``other`` in the layer of the value ``name``."""
    layer, dot, _ = name.partition(".")
    return f"{layer}.{other}" if dot and layer.isdigit() else other
