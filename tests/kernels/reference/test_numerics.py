"""Number formats, against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forno.kernels.reference.numerics import quantize_s8, round_bf16, round_kv_s8

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(floats)
def test_bf16_is_the_nearest_with_ties_to_even(x: float) -> None:
    rounded = float(round_bf16(np.array([x], np.float32))[0])
    low = np.array([x], np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    candidates = [float(c) for c in np.concatenate([low, low + np.uint32(0x10000)]).view(np.float32)]
    if not np.isfinite(candidates[1]):
        return  # beyond the largest bf16: rounds to it or to infinity
    distance = [abs(Fraction(c) - Fraction(x)) for c in candidates]
    best = candidates[int(distance[1] < distance[0])]
    if distance[0] == distance[1]:
        best = candidates[int(low[0] >> np.uint32(16)) & 1]
    assert rounded == best


def test_bf16_extremes() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3.4e38, -0.0, 1.0], np.float32)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(round_bf16(x), np.array([np.nan, np.inf, -np.inf, np.inf, -0.0, 1.0], np.float32))


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=64, max_size=64))
def test_s8_is_within_half_a_step_of_the_value(values: list[float]) -> None:
    x = np.array([values], np.float32)
    s8 = quantize_s8(x)
    assert s8.q.dtype == np.int8
    assert s8.scale.shape == (1, 2)
    steps = np.repeat(s8.scale, 32, axis=1)
    assert (np.abs(s8.dequantize() - x) <= steps * 0.5001 + np.abs(x) * 1e-6 + 1e-37).all()
    np.testing.assert_array_equal(s8.sums, s8.q.reshape(1, 2, 32).astype(int).sum(-1))


def test_s8_rounds_half_to_even_and_scales_to_127() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    s8 = quantize_s8(x)
    assert s8.q[0, :6].tolist() == [127, 0, 2, 2, 0, -2]
    assert s8.scale[0, 0] == 1


def test_s8_of_zeros_is_zero() -> None:
    s8 = quantize_s8(np.zeros((2, 64), np.float32))
    assert not s8.q.any()
    assert not s8.scale.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_s8_shows_a_fault_instead_of_hiding_it(bad: float) -> None:
    x = np.ones((1, 64), np.float32)
    x[0, 3] = bad
    with np.errstate(invalid="ignore"):
        out = quantize_s8(x).dequantize()
    assert not np.isfinite(out[0, :32]).any()
    np.testing.assert_array_equal(out[0, 32:], np.ones(32))


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=40, max_size=40))
def test_int8_kv_is_within_half_a_step_of_its_group(values: list[float]) -> None:
    x = np.array([[values]], np.float32)
    kept = round_kv_s8(x)
    assert kept.shape == x.shape
    for group in (slice(32), slice(32, 40)):
        amax = np.abs(x[..., group]).max()
        assert (np.abs(kept - x)[..., group] <= amax / 127 * (1 + 1 / 128) * 0.5001 + 2.0**-118).all()
        assert (np.abs(kept[..., group]) <= amax * (1 + 1 / 128)).all()


def test_int8_kv_is_zero_where_a_scale_would_be_subnormal() -> None:
    assert (round_kv_s8(np.array([1.6e-41, 2.0**-119, 0.0], np.float32)) == 0).all()


def test_int8_kv_groups_do_not_share_a_scale_or_a_fault() -> None:
    x = np.concatenate([np.full(32, 127.0), np.linspace(-1, 1, 32), [np.nan], np.ones(7)]).astype(np.float32)
    kept = round_kv_s8(x)
    assert (kept[:32] == 127).all()  # a scale that bf16 holds is kept as it is
    assert np.abs(kept[32:64] - x[32:64]).max() < 0.005
    assert np.isnan(kept[64:]).all()
    assert not np.isnan(kept[:64]).any()
    assert not round_kv_s8(np.zeros((2, 48), np.float32)).any()
