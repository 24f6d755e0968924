"""Op functions against formulas written out element by element in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forno.kernels.reference import functions as fn
from forno.program.ops import RopeSpec


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)


def test_matmul_rows_is_a_product() -> None:
    x, w = normal(37, 24), normal(10, 24, seed=1)
    np.testing.assert_allclose(fn.matmul_rows(x, w), x.astype(float) @ w.T.astype(float), atol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, 16, 33])
def test_matmul_rows_gives_a_row_the_same_bits_in_any_batch(rows: int) -> None:
    x, w = normal(50, 160), normal(97, 160, seed=1)
    whole = fn.matmul_rows(x, w)
    np.testing.assert_array_equal(fn.matmul_rows(x[50 - rows :], w), whole[50 - rows :])


@pytest.mark.parametrize("group", [0, 4])
def test_rms_norm(group: int) -> None:
    x, eps = normal(3, 12), 1e-3
    size = group or 12
    weight = normal(size, seed=1)
    out = fn.rms_norm(x, weight, eps, group)
    for r in range(3):
        for c in range(12):
            members = x[r, c // size * size :][:size].astype(float)
            expected = x[r, c] / math.sqrt((members**2).mean() + eps) * weight[c % size]
            assert out[r, c] == pytest.approx(expected, rel=1e-5)


def test_silu_mul_holds_at_the_extremes() -> None:
    gate = np.array([[-1e30, -100, -1, 0, 1, 100, 1e30]], np.float32)
    out = fn.silu_mul(gate, np.full_like(gate, 2))
    expected = [0, 0, -2 / (1 + math.e), 0, 2 / (1 + 1 / math.e), 200, 2e30]
    np.testing.assert_allclose(out[0], expected, rtol=1e-6, atol=1e-30)


def test_rope_rotates_pairs_half_a_head_apart() -> None:
    rope = RopeSpec(4, (1.0, 0.25), attention_factor=2.0)
    x, positions = normal(2, 2 * 6), np.array([0, 3], np.int32)
    out = fn.rotate(x, 2, rope, positions).reshape(2, 2, 6)
    heads = x.reshape(2, 2, 6)
    np.testing.assert_allclose(out[0, :, :4], 2 * heads[0, :, :4])  # position 0 turns nothing
    np.testing.assert_array_equal(out[..., 4:], heads[..., 4:])  # beyond dim: untouched
    for head in range(2):
        for i, frequency in enumerate(rope.inv_freq):
            turned = complex(heads[1, head, i], heads[1, head, i + 2]) * 2 * np.exp(1j * 3 * frequency)
            assert out[1, head, i] + 1j * out[1, head, i + 2] == pytest.approx(turned, rel=1e-5)


@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_attend_maps_query_heads_to_groups(softcap: float) -> None:
    q, k, v = normal(6, 8), normal(2, 5, 8, seed=1), normal(2, 5, 4, seed=2)
    out = fn.attend(q, k, v, scale=0.5, softcap=softcap)
    for head in range(6):
        scores = 0.5 * k[head // 3].astype(float) @ q[head]
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        p = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(out[head], p @ v[head // 3], rtol=1e-5, atol=1e-6)


def test_softmax_of_large_scores_is_finite() -> None:
    np.testing.assert_allclose(fn.softmax(np.array([[1e4, 1e4, -1e4]], np.float32)), [[0.5, 0.5, 0]])
