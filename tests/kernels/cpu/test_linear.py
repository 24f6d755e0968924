"""The linear kernels of every instruction set: near a float64 reference, and the same bits however the work is cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno import _native
from tests.kernels.cpu import block_formats
from tests.kernels.cpu.block_formats import BLOCK, CHANNELS, dequantize, quantize_s8, random_channels, random_weight, round_bf16

ISAS = _native.available_isas()
FLOATS = ("f32", "f16", "bf16")
FORMATS = (*block_formats.FORMATS, CHANNELS)


def make(rng: np.random.Generator, fmt: str, n: int, k: int) -> tuple[_native.PackedMatrix, np.ndarray]:
    """A packed random weight and its values in float64."""
    if fmt == CHANNELS:
        codes, scales, values = random_channels(rng, n, k)
        channels = _native.PackedMatrix(fmt, n, k)
        channels.pack(codes, scales=scales)
        return channels, values.astype(np.float64)
    data = random_weight(rng, fmt, n, k)
    matrix = _native.PackedMatrix(fmt, n, k)
    matrix.pack(data)
    return matrix, dequantize(fmt, data, n, k).astype(np.float64)


def make_gate_up(rng: np.random.Generator, fmt: str, n: int, k: int) -> tuple[_native.PackedMatrix, np.ndarray, np.ndarray]:
    matrix = _native.PackedMatrix(fmt, 2 * n, k, interleaved=True)
    if fmt == CHANNELS:
        (gate, gate_scales, g), (up, up_scales, u) = (random_channels(rng, n, k) for _ in range(2))
        matrix.pack_gate_up(gate, up, gate_scales=gate_scales, up_scales=up_scales)
        return matrix, g.astype(np.float64), u.astype(np.float64)
    gate, up = (random_weight(rng, fmt, n, k) for _ in range(2))
    matrix.pack_gate_up(gate, up)
    return matrix, dequantize(fmt, gate, n, k).astype(np.float64), dequantize(fmt, up, n, k).astype(np.float64)


def seen(fmt: str, x: np.ndarray) -> np.ndarray:
    """What the weights' kernel reads of ``x``, in float64."""
    if fmt == "bf16":
        return (round_bf16(x).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if fmt in FLOATS:
        return x.astype(np.float64)
    group = x.shape[1] if fmt == CHANNELS else 32
    q, scale, _ = quantize_s8(x, group)
    return (q.reshape(len(x), -1, group) * scale.astype(np.float64)[:, :, None]).reshape(x.shape)


def check(got: np.ndarray, x: np.ndarray, w: np.ndarray) -> None:
    """Within fp32 rounding of the terms that were summed."""
    expected = x @ w.T
    bound = 3e-6 * (np.abs(x) @ np.abs(w).T) + 1e-6
    assert (np.abs(got - expected) <= bound).all(), np.abs((got - expected) / bound).max()


def raw(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint32)


def rows_like(rng: np.random.Generator, m: int, k: int) -> np.ndarray:
    return rng.standard_normal((m, k)).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
def test_quantize_to_s8(isa: str) -> None:
    rng = np.random.default_rng(0)
    x = rows_like(rng, 9, 96) * np.exp(rng.standard_normal((9, 1)) * 8).astype(np.float32)
    x[2, 32:64] = 0
    for got, expected in zip(_native.quantize(x, isa=isa, threads=2), quantize_s8(x), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [32, 96, 4864])
def test_quantize_rows_to_s8(isa: str, width: int) -> None:
    rng = np.random.default_rng(0)
    x = rows_like(rng, 9, width) * np.exp(rng.standard_normal((9, 1)) * 8).astype(np.float32)
    x[2] = 0
    x[3, 7] = np.nan
    x[4, 8] = -np.inf
    got, expected = _native.quantize(x, dtype="s8_row", isa=isa, threads=2), quantize_s8(x, width)
    finite = np.isfinite(x).all(1)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours[finite], theirs[finite])
    assert np.isnan(got[1][~finite]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [1, 7, 16, 37])
def test_round_to_bf16(isa: str, width: int) -> None:
    x = np.random.default_rng(1).integers(0, 2**32, (64, width), dtype=np.uint32).view(np.float32)
    got = _native.quantize(x, dtype="bf16", isa=isa)
    nan = np.isnan(x)
    np.testing.assert_array_equal(got[~nan], round_bf16(np.where(nan, 0, x))[~nan])
    assert np.isnan((got[nan].astype(np.uint32) << 16).view(np.float32)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fmt", ["q8_0", "q4_1", "q6_k", "bf16", "f32", CHANNELS])
def test_nan_and_infinity_reach_the_output(isa: str, fmt: str, bad: float) -> None:
    rng = np.random.default_rng(2)
    weight, _ = make(rng, fmt, 64, 256)
    x = rows_like(rng, 3, 256)
    x[1, 100] = bad
    y = _native.linear(x, [weight], isa=isa)
    assert not np.isfinite(y[1]).any()
    assert np.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", FORMATS)
@settings(max_examples=12, deadline=None)
@given(m=st.integers(1, 60), n=st.integers(1, 150), blocks=st.integers(1, 3), seed=st.integers(0, 1000))
def test_against_float64(isa: str, fmt: str, m: int, n: int, blocks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = blocks * BLOCK.get(fmt, 32) if fmt not in FLOATS else 17 * blocks
    weight, values = make(rng, fmt, n, k)
    x = rows_like(rng, m, k)
    check(_native.linear(x, [weight], isa=isa, threads=2), seen(fmt, x), values)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", FORMATS)
def test_rows_longer_than_a_slice(isa: str, fmt: str) -> None:
    """K beyond what is expanded at once, in the few-rows and the many-rows path."""
    rng = np.random.default_rng(3)
    weight, values = make(rng, fmt, 66, 4352 + (fmt in FLOATS))
    x = rows_like(rng, 30, weight.k)
    y = _native.linear(x, [weight], isa=isa)
    check(y, seen(fmt, x), values)
    np.testing.assert_array_equal(raw(_native.linear(x[:2], [weight], isa=isa)), raw(y[:2]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", FORMATS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_rows_bits_depend_on_nothing_but_the_row(isa: str, fmt: str, data: st.DataObject) -> None:
    """Alone, in any batch at any place, by any number of threads, in any row range: the same float bits."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    n, k = data.draw(st.sampled_from([64, 100, 576])), 256 + (fmt in FLOATS)
    weight, _ = make(rng, fmt, n, k)
    x = rows_like(rng, data.draw(st.integers(2, 200)), k)
    full = _native.linear(x, [weight], isa=isa, threads=data.draw(st.integers(1, 4)))
    for row in (0, len(x) // 2, len(x) - 1):
        np.testing.assert_array_equal(raw(_native.linear(x[row : row + 1], [weight], isa=isa)), raw(full[row : row + 1]))
    chosen = rng.permutation(len(x))[: data.draw(st.integers(1, len(x)))]
    threads = data.draw(st.integers(1, 4))
    np.testing.assert_array_equal(raw(_native.linear(x[chosen], [weight], isa=isa, threads=threads)), raw(full[chosen]))
    begin = data.draw(st.integers(0, len(x) - 1))
    end = data.draw(st.integers(begin + 1, len(x)))
    part = _native.linear(x, [weight], row_begin=begin, row_end=end, isa=isa, threads=threads)
    np.testing.assert_array_equal(raw(part), raw(full[begin:end]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("m", [1, 33])
def test_parts_bias_and_residual(isa: str, threads: int, m: int) -> None:
    """Three weights of different codecs side by side, as merged q, k and v."""
    rng = np.random.default_rng(4)
    parts = [make(rng, fmt, n, 256) for fmt, n in (("q4_1", 96), ("q8_0", 50), ("q6_k", 70))]
    biases = [rows_like(rng, 1, 96)[0], None, rows_like(rng, 1, 70)[0]]
    x, residual = rows_like(rng, m, 256), rows_like(rng, m, 216)
    weights = [p for p, _ in parts]
    plain = _native.linear(x, weights, isa=isa, threads=threads)
    check(plain, seen("q8_0", x), np.concatenate([v for _, v in parts]))
    full_bias = np.concatenate([biases[0], np.zeros(50, np.float32), biases[2]])
    got = _native.linear(x, weights, biases=biases, residual=residual, isa=isa, threads=threads)
    np.testing.assert_array_equal(raw(got), raw((plain + full_bias) + residual))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("m", [1, 40])
def test_output_dtypes(isa: str, m: int) -> None:
    """A fused conversion gives what the separate one would."""
    rng = np.random.default_rng(5)
    weights = [make(rng, "q5_0", n, 64)[0] for n in (64, 96)]
    x = rows_like(rng, m, 64)
    y = _native.linear(x, weights, isa=isa)
    np.testing.assert_array_equal(
        _native.linear(x, weights, out_dtype="bf16", isa=isa, threads=2), _native.quantize(y, dtype="bf16", isa=isa)
    )
    fused = _native.linear(x, weights, out_dtype="s8", isa=isa, threads=2)
    for got, expected in zip(fused, _native.quantize(y, isa=isa), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", ["q4_1", "q4_k", "bf16", "f32", CHANNELS])
@pytest.mark.parametrize(("m", "n"), [(1, 64), (5, 40), (50, 96)])
def test_silu_mul(isa: str, fmt: str, m: int, n: int) -> None:
    rng = np.random.default_rng(6)
    weight, gate, up = make_gate_up(rng, fmt, n, 256)
    x = rows_like(rng, m, 256)
    read = seen(fmt, x)
    g, u = read @ gate.T, read @ up.T
    got = _native.linear(x, [weight], silu_mul=True, isa=isa, threads=2)
    expected = g / (1 + np.exp(-g)) * u
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4 * np.abs(expected).mean())
    np.testing.assert_array_equal(raw(got[:1]), raw(_native.linear(x[:1], [weight], silu_mul=True, isa=isa)))
    if n % 32 == 0:
        fused = _native.linear(x, [weight], silu_mul=True, out_dtype="s8", isa=isa)
        for q, e in zip(fused, _native.quantize(got, isa=isa), strict=True):
            np.testing.assert_array_equal(q, e)


@pytest.mark.parametrize("isa", ISAS)
def test_silu_mul_with_bias(isa: str) -> None:
    """The bias has the packed order: 32 of gate, 32 of up, padded."""
    rng = np.random.default_rng(7)
    weight, gate, up = make_gate_up(rng, "f32", 40, 33)
    x, b_gate, b_up = rows_like(rng, 4, 33), rows_like(rng, 1, 40)[0], rows_like(rng, 1, 40)[0]
    bias = np.zeros((2, 2, 32), np.float32)
    for i, b in enumerate((b_gate, b_up)):
        bias[:, i] = np.pad(b, (0, 24)).reshape(2, 32)
    got = _native.linear(x, [weight], biases=[bias.reshape(-1)], silu_mul=True, isa=isa)
    g, u = x @ gate.T + b_gate, x @ up.T + b_up
    np.testing.assert_allclose(got, g / (1 + np.exp(-g)) * u, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_codes_and_activations(isa: str) -> None:
    """Largest magnitudes of both factors: integer products must not saturate."""
    for fmt in ("q8_0", "q4_0", "q5_0", "q4_1", "q5_1", "iq4_nl"):
        data = random_weight(np.random.default_rng(8), fmt, 64, 64)
        size = {"q8_0": 34, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "iq4_nl": 18}[fmt]
        blocks = data.reshape(-1, size)
        for code in (0x00, 0xFF, 0x80, 0x7F):
            blocks[:, size - (32 if fmt == "q8_0" else 16) :] = code
            if fmt in ("q5_0", "q5_1"):
                blocks[:, size - 20 : size - 16] = code
            weight = _native.PackedMatrix(fmt, 64, 64)
            weight.pack(data)
            for value in (1.0, -1.0):
                x = np.full((5, 64), value, np.float32)
                check(_native.linear(x, [weight], isa=isa), seen(fmt, x), dequantize(fmt, data, 64, 64).astype(np.float64))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("code", "value"), [(-128, 1.0), (-128, -1.0), (127, 1.0), (127, -1.0)])
def test_sums_over_a_whole_row_are_exact(isa: str, code: int, value: float) -> None:
    """w8a8 at the largest magnitudes and the longest row: the int32 sums of either sign do not overflow."""
    n, k = 3, 1 << 17
    weight = _native.PackedMatrix(CHANNELS, n, k)
    weight.pack(np.full(n * k, code, np.int8).view(np.uint8), scales=np.full(n, 0.5, np.float32))
    got = _native.linear(np.full((2, k), value, np.float32), [weight], isa=isa)
    expected = np.float32(code * 127 * k) * (np.float32(0.5) * np.float32(1 / np.float32(127))) * np.float32(value)
    np.testing.assert_array_equal(got, np.full((2, n), expected))


def test_int8_channels_give_the_same_bits_on_every_instruction_set() -> None:
    """Sums are integers, so nothing is left to rounding but what follows them."""
    rng = np.random.default_rng(9)
    weight, _ = make(rng, CHANNELS, 200, 544)
    x = rows_like(rng, 7, 544)
    first, *others = (_native.linear(x, [weight], isa=isa) for isa in ISAS)
    for other in others:
        np.testing.assert_array_equal(raw(first), raw(other))


def test_instruction_sets_agree_within_rounding() -> None:
    rng = np.random.default_rng(9)
    weight, values = make(rng, "q4_k", 200, 512)
    x = rows_like(rng, 7, 512)
    for isa in ISAS:
        check(_native.linear(x, [weight], isa=isa), seen("q4_k", x), values)


def test_calls_that_do_not_fit() -> None:
    rng = np.random.default_rng(10)
    q8, f32 = make(rng, "q8_0", 64, 64)[0], make(rng, "f32", 64, 64)[0]
    x = rows_like(rng, 2, 64)
    with pytest.raises(ValueError, match="not available"):
        _native.linear(x, [q8], isa="sse9")
    with pytest.raises(ValueError, match="same input"):
        _native.linear(x, [q8, f32])
    with pytest.raises(ValueError, match="width 32"):
        _native.linear(np.ascontiguousarray(x[:, :32]), [q8])
    with pytest.raises(ValueError, match="interleaved"):
        _native.linear(x, [q8], silu_mul=True)
    with pytest.raises(ValueError, match="in parts"):
        _native.linear(x, [q8], out_dtype="s8_row")
    with pytest.raises(ValueError, match="same input"):
        _native.linear(x, [q8, make(rng, CHANNELS, 64, 64)[0]])
