"""Number formats of activations and caches, in numpy: bf16 rounding and grouped int8."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

GROUP = 32
"""Columns of an s8 activation that share a scale."""


def round_bf16(x: np.ndarray) -> np.ndarray:
    """float32 to the nearest bfloat16, ties to even, as float32. Values beyond the largest bf16 become infinite."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32))


@dataclass(frozen=True, slots=True)
class S8:
    """int8 values ``q [..., width]`` with an fp32 ``scale [..., width / group]``: ``x ~= q * scale``."""

    q: np.ndarray
    scale: np.ndarray

    @property
    def sums(self) -> np.ndarray:
        """int32 sum of ``q`` over each group; what kernels with unsigned weights subtract."""
        return self._groups.sum(-1, dtype=np.int32)

    def dequantize(self) -> np.ndarray:
        return (self._groups.astype(np.float32) * self.scale[..., None]).reshape(self.q.shape)

    def rows(self, index: np.ndarray) -> S8:
        return S8(self.q[index], self.scale[index])

    @property
    def _groups(self) -> np.ndarray:
        return self.q.reshape(*self.scale.shape, self.q.shape[-1] // self.scale.shape[-1])


def round_kv_s8(x: np.ndarray) -> np.ndarray:
    """float32 ``[..., dim]`` to what an int8 cache keeps of it, as float32 (exactly: 7 bits times 8).

    Symmetric int8 in groups of ``GROUP`` dims, the last of which has what is left, and a bf16 scale for each:
    ``scale = amax / 127`` rounded up, ``q = round_half_even(x * (1 / scale))``. So no ``q`` exceeds 127, and a step is
    at most 1/128 longer than with an fp32 scale. A group with a NaN or an infinity is all NaN, one below 2^-118 all zero.
    """
    dim = x.shape[-1]
    padded = np.pad(np.asarray(x, np.float32), [(0, 0)] * (x.ndim - 1) + [(0, -dim % GROUP)])
    groups = padded.reshape(*x.shape[:-1], -1, GROUP)
    amax = np.abs(groups).max(-1, keepdims=True)
    scale = (((amax / np.float32(127)).view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        q = np.where(amax >= np.float32(2.0**-118), np.rint(groups * (np.float32(1) / scale)), np.float32(0))
        kept = np.where(np.isfinite(amax), q * scale, np.float32(np.nan))
    return kept.reshape(*x.shape[:-1], -1)[..., :dim]


def quantize_s8(x: np.ndarray, group: int = GROUP) -> S8:
    """Symmetric int8 in groups of ``group`` along the last axis, which it must divide.

    ``scale = amax / 127``; ``q = round_half_even(x * (127 / amax))``, 0 where ``amax`` is 0. A group with a NaN or
    an infinity has such a scale, so that the fault shows in whatever is computed from it.
    """
    groups = np.asarray(x, np.float32).reshape(*x.shape[:-1], x.shape[-1] // group, group)
    amax = np.abs(groups).max(-1)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where(amax > 0, np.float32(127) / amax, np.float32(0))
        q = np.nan_to_num(np.rint(groups * inverse[..., None])).clip(-127, 127).astype(np.int8)
    return S8(q.reshape(x.shape), amax / np.float32(127))
