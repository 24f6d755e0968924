"""Weights of any format and activations for kernel tests: random, and by the definitions that kernels are held against.

Those are ``forno.loader.dequant`` (which ``test_packed`` checks against the gguf package) and ``forno.kernels.reference``.
"""

from __future__ import annotations

import numpy as np

from forno.kernels.reference import numerics
from forno.loader.dequant import dequantize_bytes
from forno.program import formats
from tests.helpers.gguf_writer import random_weights

FORMATS = tuple(formats.FORMATS)
BLOCK = {name: form.block for name, form in formats.FORMATS.items()}
"""Weights along K per block of the file."""


def random_weight(rng: np.random.Generator, fmt: str, n: int, k: int) -> np.ndarray:
    """Bytes of a random ``[n, k]`` weight, uint8 and 1-D: any codes, scales of either sign that keep weights around 1."""
    return np.frombuffer(random_weights(fmt, (n, k), rng, 1.0), np.uint8).copy()


def dequantize(fmt: str, data: np.ndarray, n: int, k: int) -> np.ndarray:
    """f32 ``[n, k]``."""
    return dequantize_bytes(data, fmt).reshape(n, k)


def quantize_s8(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Activations ``[m, k]`` in groups of 32: int8 ``[m, k]``, f32 scale and int32 sum ``[m, k / 32]``."""
    s8 = numerics.quantize_s8(x)
    return s8.q, s8.scale, s8.sums


def round_bf16(x: np.ndarray) -> np.ndarray:
    """The bits of ``x`` (finite) rounded to bfloat16, to nearest even."""
    return (numerics.round_bf16(x).view(np.uint32) >> 16).astype(np.uint16)
