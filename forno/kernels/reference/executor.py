"""Walks a ``Program`` in numpy. One short function per op; conversions of type follow one rule, in ``_Frame.put``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from forno.errors import CheckpointError
from forno.kernels.reference import functions as fn
from forno.kernels.reference.cache import PagedCache
from forno.kernels.reference.numerics import S8, quantize_s8, round_bf16
from forno.program import ops
from forno.program.batch import NUM_TOKENS, ROW, ROW0, Batch
from forno.program.ops import Op
from forno.program.program import Program

Sampler = Callable[[np.ndarray], np.ndarray]
"""Logits ``[outputs, vocab]`` to int32 tokens ``[outputs]``."""

Stored = np.ndarray | S8
"""A value as it is held: float32 (``f32``, and ``bf16`` after rounding), int32, or ``S8``."""


def greedy(logits: np.ndarray) -> np.ndarray:
    """The best token of each row; the lowest id among equals."""
    return logits.argmax(-1).astype(np.int32)


_CONVERT: dict[str, Callable[[np.ndarray], Stored]] = {
    "s8": quantize_s8,
    "s8_row": lambda x: quantize_s8(x, x.shape[-1]),
    "bf16": round_bf16,
}
"""What turns an op's float32 result into a value of each type that is not f32."""


class ReferenceExecutor:
    """Runs steps of one program. Holds the weights (float32, by the program's names) and the KV caches.

    With ``row_by_row`` a request's bits do not depend on its batch. Without it a linear multiplies all rows in one
    call: many times faster for long prompts (perplexity of a real model), and equal up to the order of a sum.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, np.ndarray],
        num_blocks: int,
        block_size: int,
        *,
        row_by_row: bool = True,
    ) -> None:
        self.program = program
        self.matmul = fn.matmul_rows if row_by_row else fn.matmul
        self.weights: dict[str, np.ndarray] = {}
        for name, spec in program.weights.items():
            if name not in weights:
                raise CheckpointError(f"the model has no weight {name}")
            if weights[name].shape != spec.shape:
                raise CheckpointError(f"{name} has shape {weights[name].shape}, the config asks for {spec.shape}")
            self.weights[name] = np.ascontiguousarray(weights[name], np.float32)
        self.caches = {n: PagedCache(c, num_blocks, block_size) for n, c in program.caches.items()}

    def copy_blocks(self, copies: Collection[tuple[int, int]]) -> None:
        """Copy (source, destination) blocks in every layer, in order."""
        for source, destination in copies:
            for cache in self.caches.values():
                cache.copy(source, destination)

    def run(self, batch: Batch, capture: Collection[str] = (), sampler: Sampler = greedy) -> dict[str, Any]:
        """Compute one step; returns the values named in ``capture``, and always ``logits`` and ``sampled``.

        ``logits`` are float32 ``[outputs, vocab]``; they are there whether or not the head is fused.
        """
        frame = _Frame(self, batch, sampler)
        for op in self.program.ops:
            _EVALUATE[type(op)](frame, op)
        kept = {name: frame.values[name] for name in capture}
        return {**kept, "logits": frame.logits, "sampled": frame.sampled}


class _Frame:
    """The state of one step: its inputs and the values computed so far."""

    def __init__(self, executor: ReferenceExecutor, batch: Batch, sampler: Sampler) -> None:
        self.program, self.weights, self.caches = executor.program, executor.weights, executor.caches
        self.matmul = executor.matmul
        self.batch, self.sampler = batch, sampler
        self.values: dict[str, Stored] = {}
        self.logits = self.sampled = np.empty(0)

    def get(self, name: str) -> np.ndarray:
        """A value as float32."""
        value = self.values[name]
        return value.dequantize() if isinstance(value, S8) else value

    def put(self, name: str, x: np.ndarray) -> None:
        """Hold an op's float32 result as the value's declared type. Every conversion in a program happens here."""
        dtype = self.program.values[name].dtype
        self.values[name] = _CONVERT[dtype](x) if dtype in _CONVERT else x

    def write_kv(self, cache: str, k: np.ndarray, v: np.ndarray) -> None:
        for i, span in enumerate(self.batch.spans):
            rows = slice(span[ROW0], span[ROW0] + span[NUM_TOKENS])
            self.caches[cache].write(self.batch.block_table(i), self.batch.positions[rows], k[rows], v[rows])

    def linear(self, x: str, weight: str, bias: str | None) -> np.ndarray:
        product = self.matmul(self.get(x), self.weights[weight])
        return product if bias is None else product + self.weights[bias]

    def sample(self, out: str, logits: np.ndarray) -> None:
        self.logits = logits
        self.sampled = self.values[out] = self.sampler(logits)


def _embed(f: _Frame, op: ops.Embed) -> None:
    f.put(op.out, f.weights[op.weight][f.batch.token_ids])


def _rms_norm(f: _Frame, op: ops.RmsNorm) -> None:
    f.put(op.out, fn.rms_norm(f.get(op.x), f.weights[op.weight], op.eps, op.group))


def _quantize(f: _Frame, op: ops.Quantize) -> None:
    f.put(op.out, f.get(op.x))


def _linear(f: _Frame, op: ops.Linear) -> None:
    """Parts are multiplied one by one, so that a merged linear gives the bits of the separate ones."""
    parts = [f.linear(op.x, w, b) for w, b in zip(op.weights, op.biases, strict=True)]
    out = fn.silu_mul(*parts) if op.activation == "silu_mul" else np.concatenate(parts, axis=1)
    f.put(op.out, out if op.residual is None else f.get(op.residual) + out)


def _split(f: _Frame, op: ops.Split) -> None:
    edges = np.cumsum([f.program.values[name].width for name in op.outs])[:-1]
    for name, part in zip(op.outs, np.split(f.get(op.x), edges, axis=1), strict=True):
        f.put(name, part)


def _rope(f: _Frame, op: ops.Rope) -> None:
    f.put(op.out, fn.rotate(f.get(op.x), op.heads, f.program.ropes[op.rope], f.batch.positions))


def _kv_write(f: _Frame, op: ops.KvWrite) -> None:
    f.write_kv(op.cache, f.get(op.k), f.get(op.v))


def _qkv_prepare(f: _Frame, op: ops.QkvPrepare) -> None:
    rope, positions = f.program.ropes[op.rope], f.batch.positions
    q, k, v = np.split(f.get(op.x), np.cumsum([op.heads, op.kv_heads]) * op.head_dim, axis=1)
    if op.q_norm:
        q = fn.rms_norm(q, f.weights[op.q_norm], op.eps, op.head_dim)
    if op.k_norm:
        k = fn.rms_norm(k, f.weights[op.k_norm], op.eps, op.head_dim)
    f.write_kv(op.cache, fn.rotate(k, op.kv_heads, rope, positions), v)
    f.put(op.out, fn.rotate(q, op.heads, rope, positions))


def _attention(f: _Frame, op: ops.Attention) -> None:
    q = f.get(op.q)
    out = np.empty((len(q), f.program.values[op.out].width), np.float32)
    for i, (_, start, count, row0) in enumerate(f.batch.spans.tolist()):
        k, v = f.caches[op.cache].read(f.batch.block_table(i), start + count)
        for row, position in zip(range(row0, row0 + count), range(start, start + count), strict=True):
            seen = slice(max(position + 1 - op.window, 0) if op.window else 0, position + 1)
            heads = q[row].reshape(op.heads, op.head_dim)
            out[row] = fn.attend(heads, k[:, seen], v[:, seen], op.scale, op.softcap).reshape(-1)
    f.put(op.out, out)


def _add(f: _Frame, op: ops.Add) -> None:
    f.put(op.out, f.get(op.a) + f.get(op.b))


def _silu_mul(f: _Frame, op: ops.SiluMul) -> None:
    f.put(op.out, fn.silu_mul(f.get(op.gate), f.get(op.up)))


def _gather(f: _Frame, op: ops.GatherRows) -> None:
    value, index = f.values[op.x], f.batch.outputs[:, ROW]
    f.values[op.out] = value.rows(index) if isinstance(value, S8) else value[index]  # as it is held: converting twice may round


def _sample(f: _Frame, op: ops.Sample) -> None:
    f.sample(op.out, f.get(op.logits))


def _sample_head(f: _Frame, op: ops.SampleHead) -> None:
    f.sample(op.out, f.linear(op.x, op.weight, op.bias))


_EVALUATE: dict[type[Op], Callable[[_Frame, Any], None]] = {
    ops.Embed: _embed,
    ops.RmsNorm: _rms_norm,
    ops.Quantize: _quantize,
    ops.Linear: _linear,
    ops.Split: _split,
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
