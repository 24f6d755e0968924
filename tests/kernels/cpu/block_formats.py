"""Weights of any format of blocks, and of w8a8, and activations for kernel tests: random, and by the definitions that kernels
are held against.

Those are ``forno.loader.dequant`` (which ``test_packed`` checks against the gguf package) and ``forno.kernels.reference``.
"""

from __future__ import annotations

import numpy as np

from forno.kernels.reference import numerics
from forno.loader.dequant import dequantize_bytes
from forno.program import formats
from tests.helpers.gguf_writer import TENSOR_TYPES, random_weights

FORMATS = tuple(TENSOR_TYPES)
CHANNELS = "w8a8"
"""The format whose scales lie beside its codes."""
BLOCK = {name: form.block for name, form in formats.FORMATS.items()}
"""Weights along K per block of the file."""


def random_weight(rng: np.random.Generator, fmt: str, n: int, k: int) -> np.ndarray:
    """Bytes of a random ``[n, k]`` weight, uint8 and 1-D: any codes, scales of either sign that keep weights around 1."""
    return np.frombuffer(random_weights(fmt, (n, k), rng, 1.0), np.uint8).copy()


def dequantize(fmt: str, data: np.ndarray, n: int, k: int) -> np.ndarray:
    """f32 ``[n, k]``."""
    return dequantize_bytes(data, fmt).reshape(n, k)


def random_channels(rng: np.random.Generator, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A w8a8 weight ``[n, k]``: its codes' bytes, uint8 and 1-D, its f32 scales ``[n]``, and its f32 values."""
    codes = rng.integers(-128, 128, (n, k), np.int8)
    scales = rng.uniform(0.001, 0.02, n).astype(np.float32)
    return codes.view(np.uint8).reshape(-1), scales, codes * scales[:, None]


def quantize_s8(x: np.ndarray, group: int = numerics.GROUP) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Activations ``[m, k]`` in groups: int8 ``[m, k]``, f32 scale and int32 sum ``[m, k / group]``."""
    s8 = numerics.quantize_s8(x, group)
    return s8.q, s8.scale, s8.sums


def round_bf16(x: np.ndarray) -> np.ndarray:
    """The bits of ``x`` (finite) rounded to bfloat16, to nearest even."""
    return (numerics.round_bf16(x).view(np.uint32) >> 16).astype(np.uint16)
