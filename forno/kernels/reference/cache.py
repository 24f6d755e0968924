"""A layer's paged KV cache in numpy: what a block table means. Knows blocks and positions, not requests."""

from __future__ import annotations

import numpy as np

from forno.kernels.reference.numerics import S8, quantize_s8, round_bf16
from forno.program.program import CacheSpec


class PagedCache:
    """Keys and values of ``num_blocks`` blocks of ``block_size`` tokens.

    Position ``p`` of a sequence with block table ``blocks`` lies in block ``blocks[p // block_size]`` at
    ``p % block_size``. ``bf16`` rounds to nearest even; ``int8`` keeps one fp32 scale per token and head, each for
    K and V (``quantize_s8`` with the head as the group); ``float32`` stores what it is given.
    """

    def __init__(self, spec: CacheSpec, num_blocks: int, block_size: int) -> None:
        assert spec.kind == "paged", f"the reference has no {spec.kind} cache"
        self.spec = spec
        self.block_size = block_size
        tokens = (num_blocks, block_size, spec.kv_heads)
        stored = np.int8 if spec.dtype == "int8" else np.float32
        self.k = np.zeros((*tokens, spec.k_dim), stored)
        self.v = np.zeros((*tokens, spec.v_dim), stored)
        self.k_scale = np.zeros(tokens, np.float32)
        self.v_scale = np.zeros(tokens, np.float32)

    def write(self, blocks: np.ndarray, positions: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """Store float32 ``k`` and ``v``, ``[tokens, kv_heads * dim]``, at ``positions`` of one sequence."""
        at = (blocks[positions // self.block_size], positions % self.block_size)
        for stored, scales, x in ((self.k, self.k_scale, k), (self.v, self.v_scale, v)):
            x = x.reshape(len(x), self.spec.kv_heads, -1)
            if self.spec.dtype == "int8":
                quantized = quantize_s8(x, x.shape[-1])
                stored[at], scales[at] = quantized.q, quantized.scale[..., 0]
            else:
                stored[at] = round_bf16(x) if self.spec.dtype == "bf16" else x

    def read(self, blocks: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
        """float32 K and V of positions 0 .. ``context`` - 1, each ``[kv_heads, context, dim]``."""
        used = blocks[: -(-context // self.block_size)]
        read = []
        for stored, scales in ((self.k, self.k_scale), (self.v, self.v_scale)):
            x = stored[used].reshape(-1, *stored.shape[2:])[:context]
            if self.spec.dtype == "int8":
                x = S8(x, scales[used].reshape(-1, self.spec.kv_heads, 1)[:context]).dequantize()
            read.append(np.ascontiguousarray(x.transpose(1, 0, 2)))
        return read[0], read[1]

    def copy(self, source: int, destination: int) -> None:
        """Copy one block over another."""
        for stored in (self.k, self.v, self.k_scale, self.v_scale):
            stored[destination] = stored[source]
