"""What each op computes, as plain functions on float32 arrays. Knows no values by name, no types, no cache.

A row's result depends on that row alone, to the bit: rows are multiplied one by one, since the order in which BLAS sums
may depend on how many there are and where they lie, and attention takes one query at a time over exactly its keys.
"""

from __future__ import annotations

import numpy as np

from forno.program.ops import RopeSpec


def matmul(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """``x [rows, k] @ weight [n, k].T`` in float32, all rows in one call: the one function whose bits depend on them."""
    return x @ weight.T


def matmul_rows(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """``x [rows, k] @ weight [n, k].T`` in float32; the order of the sum over ``k`` is BLAS's for one row."""
    out = np.empty((len(x), len(weight)), np.float32)
    for row, result in zip(np.ascontiguousarray(x), out, strict=True):
        np.matmul(weight, row, out=result)
    return out


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float, group: int = 0) -> np.ndarray:
    """Root-mean-square norm (1910.07467) over each ``group`` columns (0: all); ``weight [group]`` serves every group."""
    size = group or x.shape[1]
    groups = x.reshape(len(x), x.shape[1] // size, size)
    mean = np.mean(groups * groups, axis=-1, keepdims=True, dtype=np.float32)
    return (groups / np.sqrt(mean + np.float32(eps)) * weight).reshape(x.shape)


def silu_mul(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # exp overflows to infinity for gate < -88, and the quotient is then -0, as it should
        return gate / (np.float32(1) + np.exp(-gate)) * up


def cos_sin(rope: RopeSpec, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``[rows, dim / 2]`` each: cosine and sine of float32(position) * float32(inv_freq), attention factor applied."""
    angles = positions.astype(np.float32)[:, None] * np.array(rope.inv_freq, np.float32)
    factor = np.float32(rope.attention_factor)
    return np.cos(angles) * factor, np.sin(angles) * factor


def rotate(x: np.ndarray, heads: int, rope: RopeSpec, positions: np.ndarray) -> np.ndarray:
    """Rotate columns ``i`` and ``i + dim / 2`` of each head as a pair; columns from ``dim`` on pass through."""
    cos, sin = (t[:, None, :] for t in cos_sin(rope, positions))
    head = x.reshape(len(x), heads, x.shape[1] // heads)
    half = rope.dim // 2
    a, b = head[..., :half], head[..., half : rope.dim]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, head[..., rope.dim :]], axis=-1).reshape(x.shape)


def softmax(x: np.ndarray) -> np.ndarray:
    """Over the last axis; the largest score is subtracted first."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, softcap: float = 0.0) -> np.ndarray:
    """One token's attention: ``q [heads, dim]`` over ``k, v [kv_heads, keys, dim]``; returns ``[heads, v_dim]``.

    Query head ``h`` reads key/value head ``h // (heads / kv_heads)``.
    """
    grouped = q.reshape(len(k), -1, q.shape[-1])
    scores = np.matmul(grouped, k.transpose(0, 2, 1)) * np.float32(scale)
    if softcap:
        scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
    return np.matmul(softmax(scores), v).reshape(len(q), -1)
