"""Rotary frequencies from a config's ``rope_theta`` and ``rope_scaling``, as Hugging Face defines each ``rope_type``.

Frequencies are computed in float32, as the models were trained: at position 100,000 a double-precision frequency
would be a better number and a different model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from forno.errors import CheckpointError, UnsupportedError
from forno.models.fields import checked_number
from forno.program.ops import RopeSpec


def rope_spec(config: Mapping[str, Any], head_dim: int) -> RopeSpec:
    """The rope of a config that rotates whole heads of ``head_dim`` columns.

    Reads ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before). Raises
    ``UnsupportedError`` for a scaling forno lacks, ``CheckpointError`` for a damaged one.
    """
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(settings, Mapping):
        raise CheckpointError(f"rope_scaling must be an object, got {settings!r}")
    if config.get("partial_rotary_factor", settings.get("partial_rotary_factor", 1.0)) not in (None, 1, 1.0):
        raise UnsupportedError("partial_rotary_factor other than 1 is not supported")
    kind = str(settings.get("rope_type", settings.get("type", "default")))
    if kind not in _SCALINGS:
        raise UnsupportedError(f"rope_type {kind!r} is not supported; supported are {', '.join(_SCALINGS)}")
    theta = settings.get("rope_theta", config.get("rope_theta", 10000.0))
    base = checked_number("rope_theta", theta, 1.0, 1e12)
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    inv_freq = np.float32(1.0) / np.power(np.float32(base), exponents)
    return RopeSpec(head_dim, tuple(_SCALINGS[kind](inv_freq, settings).tolist()))


def _default(inv_freq: np.ndarray, settings: Mapping[str, Any]) -> np.ndarray:
    return inv_freq


def _linear(inv_freq: np.ndarray, settings: Mapping[str, Any]) -> np.ndarray:
    """Positions are divided by ``factor`` (2306.15595)."""
    return inv_freq / np.float32(checked_number("rope factor", settings.get("factor"), 1e-3, 1e6))


def _llama3(inv_freq: np.ndarray, settings: Mapping[str, Any]) -> np.ndarray:
    """Llama 3.1: long wavelengths are divided by ``factor``, short ones kept, those between blended."""
    factor = np.float32(checked_number("rope factor", settings.get("factor"), 1e-3, 1e6))
    low = checked_number("low_freq_factor", settings.get("low_freq_factor"), 1e-6, 1e6)
    high = checked_number("high_freq_factor", settings.get("high_freq_factor"), 1e-6, 1e6)
    if high <= low:
        raise CheckpointError(f"high_freq_factor ({high:g}) must be above low_freq_factor ({low:g})")
    original = checked_number("original_max_position_embeddings", settings.get("original_max_position_embeddings"), 1, 1e9)
    wavelength = np.float32(2 * math.pi) / inv_freq
    blend = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    between = (1 - blend) * inv_freq / factor + blend * inv_freq
    scaled = np.where(wavelength > original / low, inv_freq / factor, inv_freq)
    return np.where((wavelength <= original / low) & (wavelength >= original / high), between, scaled)


def _factors(inv_freq: np.ndarray, settings: Mapping[str, Any]) -> np.ndarray:
    """Not a Hugging Face type: one divisor per pair, which is how GGUF stores any scaling (``rope_freqs.weight``)."""
    factors = settings.get("factors")
    if not isinstance(factors, (list, tuple)) or len(factors) != len(inv_freq):
        raise CheckpointError(f"rope factors must be a list of {len(inv_freq)} numbers")
    return inv_freq / np.array([checked_number("rope factors", f, 1e-6, 1e6) for f in factors], np.float32)


_SCALINGS: dict[str, Callable[[np.ndarray, Mapping[str, Any]], np.ndarray]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "factors": _factors,
}
