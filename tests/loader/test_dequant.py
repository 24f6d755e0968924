"""Weight formats bit for bit against the gguf package, and the rules of --quantize."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from forno.errors import CheckpointError
from forno.loader.checkpoint import Tensor
from forno.loader.dequant import GROUP, QUANTIZED_FORMATS, block_bytes, dequantize, dequantize_bytes, quantize, row_bytes
from forno.program.formats import FORMATS
from tests.helpers.gguf_writer import TENSOR_TYPES, encode, random_weights

GGML = gguf.GGMLQuantizationType
ENCODED = ("q8_0", "q4_1")


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


@pytest.mark.parametrize("form", TENSOR_TYPES)
def test_block_sizes_are_ggmls(form: str) -> None:
    block, size = gguf.GGML_QUANT_SIZES[GGML[form.upper()]]
    assert (FORMATS[form].block, block_bytes(form)) == (block, size)
    assert row_bytes(form, 512) == 512 // block * size


@pytest.mark.parametrize("form", TENSOR_TYPES)
@pytest.mark.parametrize("seed", range(3))
def test_decoding_is_bit_exact(form: str, seed: int) -> None:
    data = np.frombuffer(random_weights(form, (7, 512), np.random.default_rng(seed)), np.uint8)
    theirs = quants.dequantize(data.reshape(7, -1), GGML[form.upper()])
    assert np.array_equal(bits(dequantize_bytes(data, form).reshape(7, 512)), bits(theirs))


@pytest.mark.parametrize("form", [f for f in TENSOR_TYPES if f not in ("f32", "f16", "bf16")])
def test_decoding_any_bits_is_bit_exact(form: str) -> None:
    data = np.random.default_rng(5).integers(0, 256, (64, row_bytes(form, 256)), np.uint8)
    with np.errstate(invalid="ignore"):
        theirs = quants.dequantize(data, GGML[form.upper()])
    ours = dequantize_bytes(data.reshape(-1), form).reshape(64, 256)
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    assert np.array_equal(bits(np.nan_to_num(ours)), bits(np.nan_to_num(theirs)))


def test_large_tensors_are_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.frombuffer(random_weights("q5_k", (9, 256), np.random.default_rng(0)), np.uint8)
    whole = dequantize_bytes(data, "q5_k")
    monkeypatch.setattr("forno.loader.dequant._CHUNK", 512)
    assert np.array_equal(dequantize_bytes(data, "q5_k"), whole)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_dequantize_applies_the_row_order_and_needs_no_alignment(offset: int) -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    data = np.frombuffer(bytes(offset) + values.tobytes(), np.uint8)[offset:]
    order = np.array([2, 0, 3, 1], np.int32)
    assert np.array_equal(dequantize(Tensor("w", (4, 3), "f32", data, order)), values[order])
    assert np.array_equal(dequantize(Tensor("b", (12,), "f32", data)), values.reshape(-1))


GROUPS = npst.arrays(np.float32, (3, 64), elements=st.floats(-1000, 1000, width=32))


@pytest.mark.parametrize(("form", "step"), [("q8_0", 1 / 127), ("q4_1", 1 / 15)])
@given(values=GROUPS)
@settings(max_examples=100)
def test_encoding_errs_by_less_than_a_step(form: str, step: float, values: np.ndarray) -> None:
    data = quantize(values, form)
    assert (data.dtype, data.shape) == (np.uint8, (3, row_bytes(form, 64)))
    back = dequantize_bytes(data.reshape(-1), form).reshape(-1, GROUP)
    groups = values.reshape(-1, GROUP)
    largest = np.abs(groups).max(axis=1, keepdims=True)
    spread = groups.max(axis=1, keepdims=True) - groups.min(axis=1, keepdims=True)
    # q8_0 rounds to the nearest code; the line of least squares may leave an extreme a little further away.
    bound = largest * step / 2 if form == "q8_0" else spread * step
    rounding = (largest + spread) * 2.0**-10 + 2.0**-16  # of the halves; the smallest half, times the largest code
    assert (np.abs(back - groups) <= bound + rounding).all()


@pytest.mark.parametrize(("form", "ratio"), [("q8_0", 1.0), ("q4_1", 0.95)])
def test_encoding_is_closer_than_ggmls(form: str, ratio: float) -> None:
    values = np.random.default_rng(2).standard_normal((33, 256), np.float32) * np.float32(0.1)

    def error(data: np.ndarray) -> float:
        return float(np.sqrt(np.mean((dequantize_bytes(data.reshape(-1), form).reshape(values.shape) - values) ** 2)))

    assert error(quantize(values, form)) < ratio * error(quants.quantize(values, GGML[form.upper()]))


@pytest.mark.parametrize("form", ENCODED)
def test_values_on_the_grid_come_back_exactly(form: str) -> None:
    codes = np.tile([-127, 0, 3, 127], 8) if form == "q8_0" else np.tile([0, 1, 7, 15], 8)
    values = (codes * 0.25 + (0 if form == "q8_0" else -2.0)).astype(np.float32).reshape(1, 32)
    assert np.array_equal(dequantize_bytes(quantize(values, form).reshape(-1), form), values[0])


@pytest.mark.parametrize("form", ENCODED)
def test_groups_do_not_affect_each_other(form: str) -> None:
    values = np.random.default_rng(3).standard_normal((8, 64), np.float32) * np.logspace(-6, 3, 8, dtype=np.float32)[:, None]
    values[3] = 0.5
    together = quantize(values, form)
    assert all(np.array_equal(quantize(values[i], form), together[i]) for i in range(8))


@pytest.mark.parametrize("form", ENCODED)
def test_groups_too_small_for_a_half_become_their_minimum_or_zero(form: str) -> None:
    values = np.linspace(-1e-12, 1e-12, 32, dtype=np.float32).reshape(1, 32)
    assert np.array_equal(dequantize_bytes(quantize(values, form).reshape(-1), form), np.zeros(32, np.float32))


@pytest.mark.parametrize("form", ENCODED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -3e38])
def test_weights_that_cannot_be_encoded_are_refused(form: str, bad: float) -> None:
    values = np.ones((1, 32), np.float32)
    values[0, 7] = bad
    with pytest.raises(CheckpointError, match="cannot quantize"):
        quantize(values, form)


def test_what_quantize_means() -> None:
    assert set(QUANTIZED_FORMATS) == {"int8", "int4"}
    assert all(form in ENCODED for form in QUANTIZED_FORMATS.values())


@pytest.mark.parametrize("form", ["f16", "bf16"])
def test_half_precision_keeps_what_it_can_represent(form: str) -> None:
    values = np.array([0.0, -0.0, 1.0, -1.5, 0.25, 240.0, np.inf], np.float32)
    assert np.array_equal(bits(dequantize_bytes(np.frombuffer(encode(values, form), np.uint8), form)), bits(values))
