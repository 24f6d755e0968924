"""Folding chains of elementwise ops into one op, or into the linear in front of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from forno.program.ops import Add, Attention, KvWrite, Linear, Op, QkvPrepare, RmsNorm, Rope, Sample, SampleHead, Split
from forno.program.passes.rewrite import Graph, Rewrite
from forno.program.program import Program


def residual(program: Program) -> Program:
    """``Linear`` then ``Add`` -> ``Linear`` with a residual, where the ``Add`` stood."""
    graph, rewrite = Graph(program), Rewrite(program)
    for op in program.ops:
        if not isinstance(op, Add) or op.a == op.b:
            continue
        for product, other in ((op.b, op.a), (op.a, op.b)):
            linear = graph.producer.get(product)
            plain = isinstance(linear, Linear) and linear.residual is None and linear.activation is None
            if plain and graph.is_private(product):
                rewrite.replace(linear)  # type: ignore[arg-type]
                rewrite.replace(op, replace(linear, out=op.out, residual=other))  # type: ignore[type-var, arg-type]
                break
    return rewrite.finish("residual")


def sample_head(program: Program) -> Program:
    """``Linear`` then ``Sample`` -> ``SampleHead``."""
    graph, rewrite = Graph(program), Rewrite(program)
    for op in program.ops:
        head = graph.producer.get(op.logits) if isinstance(op, Sample) else None
        if not isinstance(head, Linear) or len(head.weights) != 1 or head.residual or head.activation:
            continue
        if isinstance(op, Sample) and graph.is_private(op.logits):
            rewrite.replace(head)
            rewrite.replace(op, SampleHead(op.out, head.x, head.weights[0], head.biases[0]))
    return rewrite.finish("sample_head")


def qkv_prepare(program: Program) -> Program:
    """``Split``, q/k norms, ropes and ``KvWrite`` -> ``QkvPrepare``; needs q, k and v side by side (pass ``qkv``)."""
    graph, rewrite = Graph(program), Rewrite(program)
    attentions: dict[str, list[Attention]] = {}
    for op in program.ops:
        if isinstance(op, Attention):
            attentions.setdefault(op.cache, []).append(op)
    for op in program.ops:
        if isinstance(op, KvWrite) and len(attentions.get(op.cache, ())) == 1:
            _prepare(program, graph, rewrite, op, attentions[op.cache][0])
    return rewrite.finish("qkv_prepare")


def _prepare(program: Program, graph: Graph, rewrite: Rewrite, write: KvWrite, attention: Attention) -> None:
    """Replace one layer's chain if it has exactly the shape that ``QkvPrepare`` computes."""
    q, k = _Chain.ending_at(graph, attention.q), _Chain.ending_at(graph, write.k)
    if q is None or k is None or q.rope.rope != k.rope.rope or not graph.is_private(write.v):
        return
    split = graph.producer.get(q.start)
    if not isinstance(split, Split) or split.outs != (q.start, k.start, write.v):
        return
    cache, dim = program.caches[write.cache], attention.head_dim
    if {q.rope.head_dim, k.rope.head_dim, cache.k_dim, cache.v_dim} != {dim}:
        return
    if any(n.group != dim for n in (q.norm, k.norm) if n) or (q.norm and k.norm and q.norm.eps != k.norm.eps):
        return
    norm = q.norm or k.norm
    fused = QkvPrepare(
        out=attention.q,
        x=split.x,
        cache=write.cache,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=dim,
        rope=q.rope.rope,
        q_norm=q.norm.weight if q.norm else None,
        k_norm=k.norm.weight if k.norm else None,
        eps=norm.eps if norm else 0.0,
    )
    rewrite.remove([split, *q.ops, *k.ops])
    rewrite.replace(write, fused)


@dataclass(frozen=True, slots=True)
class _Chain:
    """An optional per-head norm, then rope, with no other reader on the way."""

    start: str
    norm: RmsNorm | None
    rope: Rope

    @property
    def ops(self) -> list[Op]:
        return [op for op in (self.norm, self.rope) if op is not None]

    @classmethod
    def ending_at(cls, graph: Graph, value: str) -> _Chain | None:
        rope = graph.producer.get(value)
        if not isinstance(rope, Rope) or not graph.is_private(value) or not graph.is_private(rope.x):
            return None
        norm = graph.producer.get(rope.x)
        if not isinstance(norm, RmsNorm):
            return cls(rope.x, None, rope)
        return cls(norm.x, norm, rope) if graph.is_private(norm.x) else None
