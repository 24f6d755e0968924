"""What a block table means, and what each cache type keeps."""

from __future__ import annotations

import numpy as np
import pytest

from forno.kernels.reference.cache import PagedCache
from forno.kernels.reference.numerics import round_bf16
from forno.program.program import CacheSpec

HEADS, K_DIM, V_DIM = 3, 10, 6


def cache_of(dtype: str) -> PagedCache:
    return PagedCache(CacheSpec("paged", HEADS, K_DIM, V_DIM, dtype), num_blocks=6, block_size=4)


def kv(tokens: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.RandomState(seed)
    shapes = (tokens, HEADS * K_DIM), (tokens, HEADS * V_DIM)
    return tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", ["float32", "bf16", "int8"])
def test_reads_back_what_was_written_in_pieces(dtype: str) -> None:
    cache, blocks = cache_of(dtype), np.array([4, 0, 5])
    k, v = kv(11)
    for piece in (range(3), range(3, 4), range(4, 11)):
        positions = np.array(piece)
        cache.write(blocks, positions, k[positions], v[positions])
    for read, written, dim in zip(cache.read(blocks, 11), (k, v), (K_DIM, V_DIM), strict=True):
        expected = written.reshape(11, HEADS, dim).transpose(1, 0, 2)
        if dtype == "int8":
            assert (np.abs(read - expected) <= np.abs(expected).max(-1, keepdims=True) / 127 * 0.501).all()
        else:
            np.testing.assert_array_equal(read, round_bf16(expected) if dtype == "bf16" else expected)


def test_position_p_lies_in_block_p_over_block_size() -> None:
    cache, blocks = cache_of("float32"), np.array([4, 2])
    k, v = kv(1)
    cache.write(blocks, np.array([6]), k, v)
    np.testing.assert_array_equal(cache.k[2, 2].reshape(-1), k[0])
    assert np.count_nonzero(cache.k) == k.size


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_copied_blocks_are_equal_and_apart(dtype: str) -> None:
    cache = cache_of(dtype)
    k, v = kv(4)
    cache.write(np.array([1]), np.arange(4), k, v)
    cache.copy(1, 3)
    before = cache.read(np.array([3]), 4)
    np.testing.assert_array_equal(before[0], cache.read(np.array([1]), 4)[0])
    cache.write(np.array([1]), np.arange(4), *kv(4, seed=1))
    for kept, now in zip(before, cache.read(np.array([3]), 4), strict=True):
        np.testing.assert_array_equal(kept, now)
