"""Frequencies against the published formulas, in double precision."""

from __future__ import annotations

import math

import pytest

from forno.models.rope import rope_spec

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def plain(i: int, theta: float, dim: int) -> float:
    return float(theta ** (-2 * i / dim))


def test_default_frequencies() -> None:
    spec = rope_spec({"rope_theta": 1e5}, 64)
    assert spec.dim == 64
    assert spec.inv_freq == pytest.approx([plain(i, 1e5, 64) for i in range(32)], rel=1e-6)


def test_linear_scaling_divides() -> None:
    spec = rope_spec({"rope_scaling": {"type": "linear", "factor": 4}}, 8)
    assert spec.inv_freq == pytest.approx([plain(i, 1e4, 8) / 4 for i in range(4)], rel=1e-6)


def test_llama3_keeps_short_wavelengths_and_stretches_long_ones() -> None:
    spec = rope_spec({"rope_theta": 500000.0, "rope_scaling": LLAMA3}, 128)
    blended = 0
    for i, got in enumerate(spec.inv_freq):
        frequency = plain(i, 5e5, 128)
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4:
            expected = frequency
        elif wavelength > 8192:
            expected = frequency / 8
        else:
            blend = (8192 / wavelength - 1) / 3
            expected = (1 - blend) * frequency / 8 + blend * frequency
            blended += 1
        assert got == pytest.approx(expected, rel=1e-5)
    assert blended > 3


def test_transformers_5_keeps_theta_in_rope_parameters() -> None:
    old = rope_spec({"rope_theta": 500000.0, "rope_scaling": LLAMA3}, 64)
    assert rope_spec({"rope_parameters": {**LLAMA3, "rope_theta": 500000.0}}, 64) == old


def test_factors_divide_each_frequency() -> None:
    factors = [1.0, 1.0, 2.5, 8.0]
    spec = rope_spec({"rope_scaling": {"rope_type": "factors", "factors": factors}}, 8)
    assert spec.inv_freq == pytest.approx([plain(i, 1e4, 8) / f for i, f in enumerate(factors)], rel=1e-6)
