"""Weights in the bytes of every file format: values encoded where there is an encoder, and random ones.

Knows no model and no kernel. Tests use it too.
"""

from __future__ import annotations

import math

import numpy as np

from forno.loader.dequant import block_bytes, quantize
from forno.program.formats import FORMATS

ENCODABLE = ("f32", "f16", "bf16", "q8_0", "q4_1")
"""Formats that have an encoder."""

# Byte offset of each block's half-precision scale (relative to the deviation wanted) and minimum, chosen so that
# uniformly random codes give weights of about that deviation around zero: [(offset, factor), ...].
_SCALES: dict[str, list[tuple[int, float]]] = {
    "q8_0": [(0, 1 / 74)],
    "q4_0": [(0, 1 / 4.6)],
    "q4_1": [(0, 1 / 4.6), (2, -7.5 / 4.6)],
    "q5_0": [(0, 1 / 9.2)],
    "q5_1": [(0, 1 / 9.2), (2, -15.5 / 9.2)],
    "iq4_nl": [(0, 1 / 70)],
    "q4_k": [(0, 1 / 300), (2, 7.5 / 300)],
    "q5_k": [(0, 1 / 600), (2, 15.5 / 600)],
    "q6_k": [(208, 1 / 1370)],
}


def encode(values: np.ndarray, form: str) -> bytes:
    """``values`` in one of ``ENCODABLE``; bf16 rounds to even."""
    values = np.ascontiguousarray(values, np.float32)
    if form == "f32":
        return values.tobytes()
    if form == "f16":
        return values.astype("<f2").tobytes()
    if form == "bf16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
    return quantize(values, form).tobytes()


def random_weights(form: str, shape: tuple[int, ...], rng: np.random.Generator, deviation: float = 0.05) -> bytes:
    """Random bits as weights of any format, with scales of either sign that make them about ``deviation`` in size."""
    if form not in _SCALES:
        return encode(rng.standard_normal(shape, np.float32) * np.float32(deviation), form)
    count = math.prod(shape) // FORMATS[form].block
    blocks = rng.integers(0, 256, (count, block_bytes(form)), dtype=np.uint8)
    spread = rng.uniform(0.5, 1.5, len(blocks)) * rng.choice((-1.0, 1.0), len(blocks))
    for offset, factor in _SCALES[form]:
        blocks[:, offset : offset + 2] = (deviation * factor * spread).astype("<f2").view(np.uint8).reshape(-1, 2)
    return blocks.tobytes()
