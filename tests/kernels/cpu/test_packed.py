"""Packing keeps every weight bit for bit, whatever the format, order, tail or thread; bad input is refused by name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from forno import _native
from tests.kernels.cpu.block_formats import BLOCK, CHANNELS, FORMATS, dequantize, random_channels, random_weight


def packed(fmt: str, data: np.ndarray, n: int, k: int, **kwargs: object) -> _native.PackedMatrix:
    matrix = _native.PackedMatrix(fmt, n, k)
    matrix.pack(data, **kwargs)
    return matrix


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint32)


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_definition_agrees_with_the_gguf_package(fmt: str) -> None:
    data = random_weight(np.random.default_rng(0), fmt, 5, 512)
    theirs = gguf_dequantize(data, GGMLQuantizationType[fmt.upper()]).reshape(5, 512)
    np.testing.assert_array_equal(dequantize(fmt, data, 5, 512), theirs)


@pytest.mark.parametrize("fmt", FORMATS)
@settings(max_examples=10, deadline=None)
@given(n=st.integers(1, 140), blocks=st.integers(1, 4), seed=st.integers(0, 1000))
def test_unpacking_gives_back_every_bit(fmt: str, n: int, blocks: int, seed: int) -> None:
    block = BLOCK.get(fmt, 32)
    k = blocks * block if block > 1 else 3 * blocks  # odd too, for floats
    data = random_weight(np.random.default_rng(seed), fmt, n, k)
    np.testing.assert_array_equal(bits(packed(fmt, data, n, k).dequantize()), bits(dequantize(fmt, data, n, k)))


@pytest.mark.parametrize("fmt", ["f16", "q4_1", "q6_k"])
def test_row_order_and_panel_ranges_on_threads(fmt: str) -> None:
    n, k = 200, 512
    rng = np.random.default_rng(1)
    data, order = random_weight(rng, fmt, n, k), rng.permutation(n).astype(np.int32)
    matrix = _native.PackedMatrix(fmt, n, k)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda p: matrix.pack(data, row_order=order, first=p, last=p + 1), range(matrix.panels)))
    np.testing.assert_array_equal(bits(matrix.dequantize()), bits(dequantize(fmt, data, n, k)[order]))


@pytest.mark.parametrize("n_gate", [32, 40, 64])
@pytest.mark.parametrize("fmt", ["bf16", "q5_0", "q4_k"])
def test_interleaved_gate_and_up(fmt: str, n_gate: int) -> None:
    rng = np.random.default_rng(2)
    gate, up = (random_weight(rng, fmt, n_gate, 256) for _ in range(2))
    matrix = _native.PackedMatrix(fmt, 2 * n_gate, 256, interleaved=True)
    matrix.pack_gate_up(gate, up)
    expected = np.concatenate([dequantize(fmt, gate, n_gate, 256), dequantize(fmt, up, n_gate, 256)])
    np.testing.assert_array_equal(bits(matrix.dequantize()), bits(expected))


@settings(max_examples=10, deadline=None)
@given(n=st.integers(1, 140), blocks=st.integers(1, 4), seed=st.integers(0, 1000), reorder=st.booleans())
def test_channels_keep_codes_and_scales(n: int, blocks: int, seed: int, reorder: bool) -> None:
    rng, k = np.random.default_rng(seed), 32 * blocks
    codes, scales, values = random_channels(rng, n, k)
    order = rng.permutation(n).astype(np.int32)
    matrix = packed(CHANNELS, codes, n, k, scales=scales, **({"row_order": order} if reorder else {}))
    np.testing.assert_array_equal(bits(matrix.dequantize()), bits(values[order] if reorder else values))
    assert matrix.nbytes == -(-n // 64) * 64 * (k + 4)


def test_interleaved_channels() -> None:
    rng = np.random.default_rng(2)
    (gate, gate_scales, g), (up, up_scales, u) = (random_channels(rng, 40, 64) for _ in range(2))
    matrix = _native.PackedMatrix(CHANNELS, 80, 64, interleaved=True)
    matrix.pack_gate_up(gate, up, gate_scales=gate_scales, up_scales=up_scales)
    np.testing.assert_array_equal(bits(matrix.dequantize()), bits(np.concatenate([g, u])))


def test_scales_that_do_not_fit() -> None:
    codes, scales, _ = random_channels(np.random.default_rng(3), 4, 32)
    matrix = _native.PackedMatrix(CHANNELS, 4, 32)
    with pytest.raises(ValueError, match="if, and only if, it is w8a8"):
        matrix.pack(codes)
    with pytest.raises(ValueError, match="one scale per row: 4, got 3"):
        matrix.pack(codes, scales=scales[:3])
    with pytest.raises(ValueError, match="if, and only if, it is w8a8"):
        _native.PackedMatrix("q8_0", 4, 32).pack(np.zeros(4 * 34, np.uint8), scales=scales)
    with pytest.raises(ValueError, match="cannot make w8a8 from f32"):
        matrix.pack(np.zeros(4 * 128, np.uint8), source_format="f32", scales=scales)
    with pytest.raises(ValueError, match="too long"):
        _native.PackedMatrix(CHANNELS, 4, (1 << 17) + 32)


@pytest.mark.parametrize("fmt", [f for f in FORMATS if BLOCK.get(f, 32) > 1])
def test_resident_bytes_stay_near_the_files(fmt: str) -> None:
    n, k = 128, 1536
    data = random_weight(np.random.default_rng(3), fmt, n, k)
    assert data.nbytes <= packed(fmt, data, n, k).nbytes < 1.1 * data.nbytes


@pytest.mark.parametrize("source", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("target", "steps"), [("q8_0", 127.0), ("q4_1", 7.5)])
def test_quantizing_while_packing(source: str, target: str, steps: float) -> None:
    n, k = 70, 96
    data = random_weight(np.random.default_rng(4), source, n, k)
    exact = dequantize(source, data, n, k)
    error = np.abs(packed(target, data, n, k, source_format=source).dequantize() - exact).reshape(n, -1, 32)
    step = np.abs(exact).reshape(n, -1, 32).max(axis=2, keepdims=True) / steps
    assert (error <= 0.75 * step).all()  # half a step, and what rounding the scale to fp16 costs
    assert np.sqrt((error**2).mean()) < 0.32 * step.mean()


def test_least_squares_beats_the_plain_range() -> None:
    data = random_weight(np.random.default_rng(5), "f32", 64, 1024)
    x = dequantize("f32", data, 64, 1024).reshape(-1, 32)
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    plain = np.rint((x - low) / (high - low) * 15) * (high - low) / 15 + low
    ours = packed("q4_1", data, 64, 1024, source_format="f32").dequantize().reshape(-1, 32)
    assert ((ours - x) ** 2).sum() < 0.95 * ((plain - x) ** 2).sum()


def test_constant_and_zero_groups_quantize_exactly() -> None:
    x = np.concatenate([np.zeros((1, 32)), np.full((1, 32), 0.5), np.full((1, 32), -3.0)]).astype(np.float32)
    got = packed("q4_1", x.reshape(-1).view(np.uint8), 3, 32, source_format="f32").dequantize()
    np.testing.assert_array_equal(got, x)
    assert not packed("q8_0", np.zeros(128, np.uint8), 1, 32, source_format="f32").dequantize().any()


@pytest.mark.parametrize(
    ("fmt", "n", "k", "message"),
    [
        ("q8_0", 0, 32, "positive"),
        ("q8_0", 4, -32, "positive"),
        ("q8_0", 2**40, 32, "2\\^29"),
        ("q8_0", 4, 33, "blocks of 32"),
        ("q4_k", 4, 128, "blocks of 256"),
        ("q2_k", 4, 256, "unknown weight format 'q2_k'"),
    ],
)
def test_impossible_shapes(fmt: str, n: int, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.PackedMatrix(fmt, n, k)


def test_sources_that_do_not_fit() -> None:
    matrix, data = _native.PackedMatrix("q8_0", 4, 32), np.zeros(4 * 34, np.uint8)
    with pytest.raises(ValueError, match="takes 136 bytes, got 135"):
        matrix.pack(data[:-1])
    with pytest.raises(ValueError, match="names row 4"):
        matrix.pack(data, row_order=np.array([0, 1, 2, 4], np.int32))
    with pytest.raises(ValueError, match="one entry per row"):
        matrix.pack(data, row_order=np.array([0, 1, 2], np.int32))
    with pytest.raises(ValueError, match="panels"):
        matrix.pack(data, first=0, last=2)
    with pytest.raises(ValueError, match="cannot make q8_0 from q4_0"):
        matrix.pack(data, source_format="q4_0")
    with pytest.raises(ValueError, match="gate and up"):
        matrix.pack_gate_up(data, data)
    with pytest.raises(ValueError, match="not finite"):
        matrix.pack(np.full(128, np.nan, np.float32).view(np.uint8), source_format="f32")
    with pytest.raises(ValueError, match="must be even"):
        _native.PackedMatrix("q8_0", 3, 32, interleaved=True)


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("fmt", FORMATS)
def test_embedding_rows(fmt: str, isa: str) -> None:
    data = random_weight(np.random.default_rng(6), fmt, 100, 256)
    ids = np.array([0, 99, 7, 7, 64, 100, -1], np.int32)
    rows = _native.embed(packed(fmt, data, 100, 256), ids, isa=isa, threads=2)
    np.testing.assert_array_equal(bits(rows[:5]), bits(dequantize(fmt, data, 100, 256)[ids[:5]]))
    assert np.isnan(rows[5:]).all()


@pytest.mark.parametrize("isa", _native.available_isas())
def test_embedding_rows_of_channels(isa: str) -> None:
    codes, scales, values = random_channels(np.random.default_rng(6), 100, 64)
    ids = np.array([0, 99, 7], np.int32)
    rows = _native.embed(packed(CHANNELS, codes, 100, 64, scales=scales), ids, isa=isa)
    np.testing.assert_array_equal(bits(rows), bits(values[ids]))


def test_matrices_share_a_memory_that_outlives_its_name() -> None:
    shapes = [("q4_1", 70, 64), ("f32", 3, 5), ("q8_0", 64, 32)]
    memory = _native.WeightMemory(sum(_native.packed_bytes(*shape) for shape in shapes))
    matrices = [_native.PackedMatrix(*shape, memory=memory) for shape in shapes]
    with pytest.raises(ValueError, match="used up"):
        _native.PackedMatrix("q8_0", 64, 4096, memory=memory)
    del memory
    for matrix, (fmt, n, k) in zip(matrices, shapes, strict=True):
        assert matrix.nbytes == _native.packed_bytes(fmt, n, k)
        matrix.pack(random_weight(np.random.default_rng(n), fmt, n, k))
    for matrix, (fmt, n, k) in zip(matrices, shapes, strict=True):
        alone = _native.PackedMatrix(fmt, n, k)
        alone.pack(random_weight(np.random.default_rng(n), fmt, n, k))
        assert (matrix.dequantize() == alone.dequantize()).all()
