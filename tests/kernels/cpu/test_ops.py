"""The row ops against numpy: norms, rope, elementwise, gathers, cache writes, and the fused QKV preparation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno import _native
from forno.kernels.reference.numerics import round_kv_s8

ops = _native.ops
ISAS = ops.isas()
KV_DTYPES = ["bf16", "int8", "float32"]


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def f32(raw: np.ndarray) -> np.ndarray:
    return raw.view(np.float32)


def bf16(raw: np.ndarray) -> np.ndarray:
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def s8(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The q, scale and sum parts of S8 rows."""
    width = raw.shape[1] * 4 // 5
    q, scale, total = np.split(raw, [width, width + width // 8], axis=1)
    return q.copy().view(np.int8), scale.copy().view(np.float32), total.copy().view(np.int32)


def check_s8(raw: np.ndarray, x: np.ndarray) -> None:
    """``raw`` is ``x`` by the definition of ``ops.Quantize``."""
    q, scale, total = s8(raw)
    groups = x.reshape(x.shape[0], x.shape[1] // 32, 32)
    amax = np.abs(groups).max(-1)
    np.testing.assert_array_equal(scale, amax / np.float32(127))
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.where(amax[..., None] > 0, np.rint(groups * (np.float32(127) / amax)[..., None]), 0)
    np.testing.assert_array_equal(q.reshape(groups.shape), expected)
    np.testing.assert_array_equal(total, expected.sum(-1))


def angles(positions: int, dim: int) -> np.ndarray:
    """cos of every pair, then sin of every pair, per position."""
    angle = np.arange(positions)[:, None] * 100.0 ** -(np.arange(dim // 2) * 2 / dim)
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def rotated(x: np.ndarray, heads: int, cos_sin: np.ndarray) -> np.ndarray:
    """Rope of rows at positions 0, 1, ... as the op vocabulary defines it."""
    y = x.astype(np.float64).reshape(len(x), heads, -1)
    half = cos_sin.shape[1] // 2
    c, s = cos_sin[: len(x), None, :half], cos_sin[: len(x), None, half:]
    a, b = y[..., :half].copy(), y[..., half : 2 * half].copy()
    y[..., :half], y[..., half : 2 * half] = a * c - b * s, b * c + a * s
    return y.reshape(x.shape)


@settings(max_examples=40, deadline=None)
@given(
    isa=st.sampled_from(ISAS),
    threads=st.sampled_from([1, 2, 3]),
    rows=st.integers(0, 9),
    groups=st.integers(1, 4),
    size=st.sampled_from([1, 7, 16, 48, 64, 65, 576]),
    whole=st.booleans(),
)
def test_rms_norm(isa: str, threads: int, rows: int, groups: int, size: int, whole: bool) -> None:
    x = normal(rows + size, rows, groups * size) * 3
    group = 0 if whole else size
    weight = normal(1, groups * size if whole else size)
    grouped = x.astype(np.float64).reshape(rows, 1 if whole else groups, weight.size)
    expected = grouped / np.sqrt((grouped**2).mean(-1, keepdims=True) + 1e-5) * weight
    got = f32(ops.rms_norm(isa, threads, x, weight, 1e-5, group))
    np.testing.assert_allclose(got, expected.reshape(x.shape), rtol=3e-6)
    rounded = bf16(ops.rms_norm(isa, threads, x, weight, 1e-5, group, "bf16"))
    np.testing.assert_allclose(rounded, got, rtol=2**-8)
    if weight.size % 32 == 0:
        check_s8(ops.rms_norm(isa, threads, x, weight, 1e-5, group, "s8"), got)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [1, 16, 33, 1536])
def test_silu_mul_and_add(isa: str, width: int) -> None:
    gate, up = normal(1, 5, width) * 20, normal(2, 5, width)
    g = gate.astype(np.float64)
    got = f32(ops.silu_mul(isa, 2, gate, up))
    np.testing.assert_allclose(got, g / (1 + np.exp(-g)) * up, rtol=2e-6, atol=1e-37)
    np.testing.assert_allclose(bf16(ops.silu_mul(isa, 2, gate, up, "bf16")), got, rtol=2**-8)
    np.testing.assert_array_equal(f32(ops.add(isa, 2, gate, up)), gate + up)
    if width % 32 == 0:
        check_s8(ops.silu_mul(isa, 2, gate, up, "s8"), got)


@pytest.mark.parametrize("isa", ISAS)
def test_silu_at_the_ends(isa: str) -> None:
    gate = np.array([[-np.inf, -1e4, -100, 0, 100, 1e4, np.nan]], np.float32)
    got = f32(ops.silu_mul(isa, 1, gate, np.ones_like(gate)))[0]
    assert np.abs(got[1:4]).max() < 1e-33
    np.testing.assert_array_equal(got[4:6], [100, 1e4])
    assert np.isnan(got[6])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_show_in_the_scale(isa: str, bad: float) -> None:
    x = normal(3, 2, 96)
    x[1, 40] = bad
    zeros = np.zeros_like(x)
    q, scale, total = s8(ops.silu_mul(isa, 1, zeros + 50, x, "s8"))
    np.testing.assert_array_equal(np.isnan(scale), [[False] * 3, [False, True, False]])
    assert (q[1, 32:64] == 0).all()
    assert total[1, 1] == 0
    q, scale, total = s8(ops.silu_mul(isa, 1, zeros, zeros, "s8"))
    assert not q.any()
    assert not scale.any()
    assert not total.any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2])
def test_gather(isa: str, threads: int) -> None:
    x = normal(4, 7, 37)
    rows = [6, 0, 3, 3, 5]
    np.testing.assert_array_equal(f32(ops.gather(isa, threads, x, rows)), x[rows])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("heads", "dim", "rope_dim"), [(1, 2, 2), (3, 64, 64), (2, 80, 80), (2, 64, 20), (5, 10, 6)])
def test_rope(isa: str, heads: int, dim: int, rope_dim: int) -> None:
    x, table = normal(5, 40, heads * dim), angles(40, rope_dim)
    got = f32(ops.rope(isa, 2, [(0, 25, [0]), (25, 15, [0])], x, heads, table))
    np.testing.assert_allclose(got, rotated(x, heads, table), atol=2e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize(("k_dim", "v_dim", "block_size"), [(64, 64, 32), (80, 80, 64), (5, 9, 32), (128, 64, 96)])
def test_kv_write(isa: str, dtype: str, k_dim: int, v_dim: int, block_size: int) -> None:
    """What is read back by an independent walk of the layout is what was written, to the type's precision."""
    heads, length = 3, 130
    kv = ops.PagedKv(heads, k_dim, v_dim, block_size, 8, dtype)
    blocks = [5, 2, 7, 0, 3]
    k, v = normal(6, length, heads * k_dim), normal(7, length, heads * v_dim)
    for start, end in [(0, 40), (40, 41), (41, 130)]:
        ops.kv_write(isa, 2, kv, [(start, end - start, blocks)], k[start:end], v[start:end])
    for part, x in ((0, k), (1, v)):
        got, x = kv.read(blocks, length, part), x.reshape(length, heads, -1)
        if dtype == "float32":
            np.testing.assert_array_equal(got, x)
        elif dtype == "bf16":
            u = x.view(np.uint32).astype(np.uint64)
            np.testing.assert_array_equal(got.view(np.uint32), ((u + 0x7FFF + (u >> 16 & 1)) >> 16 << 16).astype(np.uint32))
        else:
            np.testing.assert_array_equal(got, round_kv_s8(x))


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("dim", [80, 5, 18])
def test_kv_bytes_equal_on_every_instruction_set(dtype: str, dim: int) -> None:
    k, v = normal(8, 70, 2 * dim), normal(9, 70, 2 * dim)
    k[3, :dim], k[4, dim:], v[5, 3], v[6, dim + 1] = 0, 1e-42, np.nan, -np.inf
    images = []
    for isa in ISAS:
        kv = ops.PagedKv(2, dim, dim, 32, 4, dtype)
        ops.kv_write(isa, 2, kv, [(0, 70, [3, 1, 0])], k, v)
        images.append(kv.raw())
    for image in images[1:]:
        np.testing.assert_array_equal(image, images[0])


@settings(max_examples=40, deadline=None)
@given(
    isa=st.sampled_from(ISAS),
    dtype=st.sampled_from(KV_DTYPES),
    dim=st.sampled_from([5, 16, 64, 80]),
    cuts=st.sets(st.integers(1, 99)),
)
def test_kv_bytes_do_not_depend_on_the_pieces(isa: str, dtype: str, dim: int, cuts: set[int]) -> None:
    k, v = normal(17, 100, 2 * dim), normal(18, 100, 2 * dim)
    apart, alone = (ops.PagedKv(2, dim, dim, 32, 4, dtype) for _ in range(2))
    for start, end in itertools.pairwise([0, *sorted(cuts), 100]):
        ops.kv_write(isa, 1, apart, [(start, end - start, [3, 1, 0, 2])], k[start:end], v[start:end])
    for i in range(100):
        ops.kv_write(isa, 1, alone, [(i, 1, [3, 1, 0, 2])], k[i : i + 1], v[i : i + 1])
    np.testing.assert_array_equal(apart.raw(), alone.raw())


@pytest.mark.parametrize("isa", ISAS)
def test_int8_kv_keeps_non_finite_values_visible(isa: str) -> None:
    k, v = normal(10, 4, 48), normal(11, 4, 48)
    k[1, 5], v[2, 37], k[3] = np.nan, np.inf, 0
    kv = ops.PagedKv(1, 48, 48, 32, 1, "int8")
    ops.kv_write(isa, 1, kv, [(0, 4, [0])], k, v)
    bad_keys, bad_values = (np.isnan(kv.read([0], 4, part)[:, 0]) for part in (0, 1))
    assert bad_keys[1, :32].all()
    assert bad_values[2, 32:].all()
    assert bad_keys.sum() == 32
    assert bad_values.sum() == 16
    assert not kv.read([0], 4, 0)[3].any()


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_copy_block(dtype: str) -> None:
    kv = ops.PagedKv(2, 16, 16, 32, 3, dtype)
    ops.kv_write("portable", 1, kv, [(0, 32, [1])], normal(12, 32, 32), normal(13, 32, 32))
    before = kv.raw().reshape(3, -1)
    kv.copy_block(1, 2)
    after = kv.raw().reshape(3, -1)
    np.testing.assert_array_equal(after[2], before[1])
    np.testing.assert_array_equal(after[:2], before[:2])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize(("dim", "rope_dim"), [(64, 64), (80, 40)])
def test_qkv_prepare_equals_the_ops_it_replaces(isa: str, dtype: str, norms: bool, dim: int, rope_dim: int) -> None:
    heads, kv_heads, length = 6, 2, 45
    x, table = normal(14, length, (heads + 2 * kv_heads) * dim), angles(length, rope_dim)
    weights = (normal(15, dim), normal(16, dim)) if norms else (np.zeros(0, np.float32),) * 2
    spans = [(0, 45, [1, 0])]
    fused, apart = (ops.PagedKv(kv_heads, dim, dim, 32, 2, dtype) for _ in range(2))
    q = f32(ops.qkv_prepare(isa, 2, fused, spans, x, heads, table, *weights, 1e-6))
    parts = np.split(x, [heads * dim, (heads + kv_heads) * dim], axis=1)
    q2, k2, v2 = (np.ascontiguousarray(part) for part in parts)
    if norms:
        q2 = f32(ops.rms_norm(isa, 1, q2, weights[0], 1e-6, dim))
        k2 = f32(ops.rms_norm(isa, 1, k2, weights[1], 1e-6, dim))
    q2 = f32(ops.rope(isa, 1, spans, q2, heads, table))
    k2 = f32(ops.rope(isa, 1, spans, k2, kv_heads, table))
    ops.kv_write(isa, 1, apart, spans, k2, v2)
    np.testing.assert_array_equal(q.view(np.uint32), q2.view(np.uint32))
    np.testing.assert_array_equal(fused.raw(), apart.raw())


@pytest.mark.parametrize("isa", ISAS)
def test_rows_are_independent(isa: str) -> None:
    """A row's bits are the same alone and among others, for any number of threads."""
    x, up, weight = normal(17, 30, 96), normal(18, 30, 96), normal(19, 96)
    for dtype in ("f32", "bf16", "s8"):
        whole = ops.rms_norm(isa, 4, x, weight, 1e-5, 0, dtype), ops.silu_mul(isa, 4, x, up, dtype)
        for row in (0, 13, 29):
            one = slice(row, row + 1)
            np.testing.assert_array_equal(ops.rms_norm(isa, 1, x[one], weight, 1e-5, 0, dtype), whole[0][one])
            np.testing.assert_array_equal(ops.silu_mul(isa, 1, x[one], up[one], dtype), whole[1][one])
