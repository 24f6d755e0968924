"""From a ``Program`` to the executor's op records: one short function per op. Fused and unfused programs alike.

Decides nothing about speed: what is fused was decided by ``program/passes``, how an op computes by its kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from forno import _native
from forno.errors import UnsupportedError
from forno.kernels.cpu.buffers import Buffers, ViewSpec, legalize, logits_of, plan_buffers
from forno.kernels.cpu.pack import PackedWeights
from forno.program import ops
from forno.program.ops import Op, RopeSpec
from forno.program.program import Program
from forno.program.shape import Axis

KV_DTYPES = {"bf16": 0, "int8": 1, "float32": 2}
"""KvDType in types.hpp."""
_AXES = {Axis.ROWS: _native.Axis.ROWS, Axis.OUTPUTS: _native.Axis.OUTPUTS}
NONE = -1
"""Where an optional constant is absent."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the executor is sized for, once."""

    threads: int
    isa: str
    spin_us: int
    """Microseconds a waiting thread spins before it yields; 0 where threads outnumber the cores they may use."""
    max_rows: int
    """Tokens per step."""
    max_positions: int
    num_blocks: int
    block_size: int


def lower(program: Program, weights: PackedWeights, limits: Limits) -> tuple[Any, tuple[Op, ...]]:
    """An executor for ``program``, and the ops its records stand for, in order (``op_nanoseconds`` is per record).

    Raises ``UnsupportedError`` for an op or cache that has no kernel, ``ValueError`` for a shape that no kernel can run,
    ``RuntimeError`` if the memory cannot be had.
    """
    _check_supported(program)
    program = legalize(program)
    buffers = plan_buffers(program, limits.max_rows, _native.HEAD_SLICE)
    executor = _native.Executor(
        isa=limits.isa,
        threads=limits.threads,
        spin_us=limits.spin_us,
        max_rows=limits.max_rows,
        vocab=program.vocab_size,
        max_positions=limits.max_positions,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        activation_bytes=buffers.bytes,
    )
    lowering = _Lowering(program, weights, limits, buffers, executor)
    recorded: list[Op] = []
    for op in program.ops:
        if not isinstance(op, ops.Split):
            _LOWER[type(op)](lowering, op)
            recorded += [op] * _records(op)
    executor.share_prefixes(not any(isinstance(op, ops.Attention) and op.materialized for op in program.ops))
    return executor, tuple(recorded)


def _records(op: Op) -> int:
    """How many records stand for ``op``: materialized attention takes three passes over its matrix."""
    return 3 if isinstance(op, ops.Attention) and op.materialized else 1


def _check_supported(program: Program) -> None:
    for op in program.ops:
        if not isinstance(op, ops.Split) and type(op) not in _LOWER:
            names = ", ".join(sorted(t.__name__ for t in _LOWER))
            raise UnsupportedError(f"the CPU has no kernel for {type(op).__name__}; it has {names}")
    for name, cache in program.caches.items():
        if cache.kind != "paged":
            raise UnsupportedError(f"cache {name} is of kind {cache.kind!r}; the CPU has paged caches only")


def rope_table(spec: RopeSpec, positions: int) -> np.ndarray:
    """float32 ``[positions, dim]``: cosines of each pair's angle, then sines; angles computed in float64."""
    angles = np.arange(positions, dtype=np.float64)[:, None] * np.array(spec.inv_freq, np.float64)
    return (np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * spec.attention_factor).astype(np.float32)


class _Lowering:
    """The executor under construction, with what has been put into it by name."""

    def __init__(self, program: Program, weights: PackedWeights, limits: Limits, buffers: Buffers, executor: Any) -> None:
        self.program, self.weights, self.buffers, self.executor = program, weights, buffers, executor
        self.ropes = {
            name: executor.constant(rope_table(spec, limits.max_positions).reshape(-1)) for name, spec in program.ropes.items()
        }
        executor.set_caches([(c.kv_heads, c.k_dim, c.v_dim, KV_DTYPES[c.dtype]) for c in program.caches.values()])
        self.caches = {name: index for index, name in enumerate(program.caches)}

    def view(self, value: str) -> ViewSpec:
        return self.buffers.views[value]

    def axis(self, value: str) -> Any:
        return _AXES[self.program.values[value].axis]

    def vector(self, name: str | None) -> int:
        """The index of a norm weight or bias as a constant."""
        return NONE if name is None else int(self.executor.constant(self.weights.vectors[name]))

    def parts(self, weights: tuple[str, ...], biases: tuple[str | None, ...]) -> list[tuple[Any, int, int]]:
        """(matrix, bias, first output column) of each weight, side by side."""
        column, parts = 0, []
        for weight, bias in zip(weights, biases, strict=True):
            parts.append((self.weights.matrix(weight), self.vector(bias), column))
            column += self.program.weights[weight].shape[0]
        return parts

    def gate_up(self, op: ops.Linear) -> list[tuple[Any, int, int]]:
        """The one part of a gated linear: gate and up interleaved, and so their biases."""
        bias = self.weights.gate_up_bias(op.biases[0], op.biases[1], self.program.weights[op.weights[0]].shape[0])
        index = NONE if bias is None else int(self.executor.constant(bias))
        return [(self.weights.gate_up(op.weights[0], op.weights[1]), index, 0)]


def _embed(low: _Lowering, op: ops.Embed) -> None:
    low.executor.add_embed(low.view(op.out), low.weights.matrix(op.weight))


def _rms_norm(low: _Lowering, op: ops.RmsNorm) -> None:
    low.executor.add_rms_norm(low.view(op.x), low.view(op.out), low.vector(op.weight), op.eps, op.group, low.axis(op.out))


def _quantize(low: _Lowering, op: ops.Quantize) -> None:
    low.executor.add_quantize(low.view(op.x), low.view(op.out), low.axis(op.out))


def _linear(low: _Lowering, op: ops.Linear) -> None:
    gated = op.activation == "silu_mul"
    parts = low.gate_up(op) if gated else low.parts(op.weights, op.biases)
    residual = None if op.residual is None else low.view(op.residual)
    low.executor.add_linear(low.view(op.x), low.view(op.out), parts, residual, gated, low.axis(op.out))


def _rope(low: _Lowering, op: ops.Rope) -> None:
    dim = low.program.ropes[op.rope].dim
    low.executor.add_rope(low.view(op.x), low.view(op.out), op.heads, op.head_dim, dim, low.ropes[op.rope])


def _kv_write(low: _Lowering, op: ops.KvWrite) -> None:
    low.executor.add_kv_write(low.view(op.k), low.view(op.v), low.caches[op.cache])


def _qkv_prepare(low: _Lowering, op: ops.QkvPrepare) -> None:
    dim, norms = low.program.ropes[op.rope].dim, (low.vector(op.q_norm), low.vector(op.k_norm))
    x, out, cache, table = low.view(op.x), low.view(op.out), low.caches[op.cache], low.ropes[op.rope]
    low.executor.add_qkv_prepare(x, out, cache, op.heads, op.head_dim, dim, table, *norms, op.eps)


def _attention(low: _Lowering, op: ops.Attention) -> None:
    cache = low.caches[op.cache]
    constants = op.heads, op.scale, op.window, op.softcap, op.materialized
    low.executor.add_attention(low.view(op.q), low.view(op.out), cache, *constants)


def _add(low: _Lowering, op: ops.Add) -> None:
    low.executor.add_add(low.view(op.a), low.view(op.b), low.view(op.out), low.axis(op.out))


def _silu_mul(low: _Lowering, op: ops.SiluMul) -> None:
    low.executor.add_silu_mul(low.view(op.gate), low.view(op.up), low.view(op.out), low.axis(op.out))


def _gather(low: _Lowering, op: ops.GatherRows) -> None:
    low.executor.add_gather(low.view(op.x), low.view(op.out))


def _sample(low: _Lowering, op: ops.Sample) -> None:
    low.executor.add_sample(low.view(op.logits))


def _sample_head(low: _Lowering, op: ops.SampleHead) -> None:
    low.executor.add_sample_head(low.view(op.x), low.view(logits_of(op)), low.parts((op.weight,), (op.bias,)))


_LOWER: dict[type[Op], Callable[[_Lowering, Any], None]] = {
    ops.Embed: _embed,
    ops.RmsNorm: _rms_norm,
    ops.Quantize: _quantize,
    ops.Linear: _linear,
    ops.Rope: _rope,
    ops.KvWrite: _kv_write,
    ops.QkvPrepare: _qkv_prepare,
    ops.Attention: _attention,
    ops.Add: _add,
    ops.SiluMul: _silu_mul,
    ops.GatherRows: _gather,
    ops.Sample: _sample,
    ops.SampleHead: _sample_head,
}
