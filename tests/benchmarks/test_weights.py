"""Random weights of every format decode to values of the size that was asked for; codes and roundings are the nearest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.weights import held_as, quantize_channels, random_tensor, to_bf16
from forno.loader.dequant import dequantize, dequantize_bytes, row_bytes
from forno.program.formats import FORMATS


@pytest.mark.parametrize("form", FORMATS)
def test_random_weights_are_of_the_size_wanted(form: str) -> None:
    tensor = random_tensor("w", form, (64, 512), np.random.default_rng(0), 0.1)
    assert tensor.data.size == 64 * row_bytes(form, 512)
    values = dequantize(tensor)
    assert np.isfinite(values).all()
    assert 0.05 < values.std() < 0.2
    assert abs(values.mean()) < 0.02


def test_only_linears_are_held_with_a_scale_per_output() -> None:
    assert held_as("w8a8", "model.layers.0.mlp.down_proj.weight") == "w8a8"
    assert held_as("w8a8", "model.embed_tokens.weight") == held_as("w8a8", "lm_head.weight") == "bf16"
    assert held_as("q4_1", "model.embed_tokens.weight") == "q4_1"


@given(st.floats(width=32, min_value=2.0**-100, max_value=2.0**100), st.sampled_from((-1.0, 1.0)))
def test_rounding_to_bf16_takes_the_nearest_and_the_even_one(size: float, sign: float) -> None:
    value = sign * size
    code = int(to_bf16(np.array([value], np.float32))[0])
    near = [dequantize_bytes(np.array([code + step], "<u2").view(np.uint8), "bf16")[0] for step in (-1, 0, 1)]
    below, chosen, above = (abs(float(candidate) - value) for candidate in near)
    assert chosen <= min(below, above)
    assert chosen < min(below, above) or code % 2 == 0


def test_int8_codes_are_nearest_to_the_stored_scale() -> None:
    values = np.random.default_rng(0).standard_normal((5, 64), np.float32)
    values[2] = 0
    codes, stored = quantize_channels(values)
    scale = (stored.astype(np.uint32) << 16).view(np.float32)
    assert codes.dtype == np.int8
    assert stored.shape == (5, 1)
    assert not codes[2].any()
    assert np.abs(codes.astype(np.int32)).max() <= 127
    # bf16 rounds the scale by up to 1/256, so the largest weights may be cut off by half a code more.
    assert (np.abs(codes * scale - values) <= scale * 1.01).all()
    assert np.median(np.abs(codes * scale - values)[scale[:, 0] > 0] / scale[scale[:, 0] > 0]) < 0.3
