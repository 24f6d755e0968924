"""A layer's paged KV cache in numpy: what a block table means. Knows blocks and positions, not requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from forno.kernels.reference.numerics import round_bf16, round_kv_s8
from forno.program.program import CacheSpec

_ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {"bf16": round_bf16, "int8": round_kv_s8, "float32": np.asarray}
"""What a cache of each type keeps of float32 values."""


class PagedCache:
    """Keys and values of ``num_blocks`` blocks of ``block_size`` tokens.

    Position ``p`` of a sequence with block table ``blocks`` lies in block ``blocks[p // block_size]`` at
    ``p % block_size``. Everything is held as float32, rounded to what the cache's type can keep: see ``_ROUND``.
    """

    def __init__(self, spec: CacheSpec, num_blocks: int, block_size: int) -> None:
        assert spec.kind == "paged", f"the reference has no {spec.kind} cache"
        self.spec = spec
        self.block_size = block_size
        tokens = (num_blocks, block_size, spec.kv_heads)
        self.k = np.zeros((*tokens, spec.k_dim), np.float32)
        self.v = np.zeros((*tokens, spec.v_dim), np.float32)

    def write(self, blocks: np.ndarray, positions: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """Store float32 ``k`` and ``v``, ``[tokens, kv_heads * dim]``, at ``positions`` of one sequence."""
        at = (blocks[positions // self.block_size], positions % self.block_size)
        for stored, x in ((self.k, k), (self.v, v)):
            stored[at] = _ROUND[self.spec.dtype](x.reshape(len(x), self.spec.kv_heads, -1))

    def read(self, blocks: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
        """float32 K and V of positions 0 .. ``context`` - 1, each ``[kv_heads, context, dim]``."""
        used = blocks[: -(-context // self.block_size)]
        k, v = (stored[used].reshape(-1, *stored.shape[2:])[:context] for stored in (self.k, self.v))
        return np.ascontiguousarray(k.transpose(1, 0, 2)), np.ascontiguousarray(v.transpose(1, 0, 2))

    def copy(self, source: int, destination: int) -> None:
        """Copy one block over another."""
        for stored in (self.k, self.v):
            stored[destination] = stored[source]
