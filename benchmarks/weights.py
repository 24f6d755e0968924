"""Weights in the bytes of every file format: values encoded where there is an encoder, and random ones.

Knows of models only what Hugging Face calls their linears, and no kernel. Tests use it too.
"""

from __future__ import annotations

import math

import numpy as np

from forno.loader.checkpoint import Tensor
from forno.loader.dequant import block_bytes, quantize
from forno.program.formats import FORMATS

ENCODABLE = ("f32", "f16", "bf16", "q8_0", "q4_1")
"""Formats that have an encoder."""

_LINEAR = "_proj.weight"
"""What the weights of a layer's linears end with."""

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
    "w8a8": [],
}
_CODE = 74
"""Deviation of random int8 codes, which are the weights of w8a8 but for their outputs' scales."""


def encode(values: np.ndarray, form: str) -> bytes:
    """``values`` in one of ``ENCODABLE``; bf16 rounds to even."""
    values = np.ascontiguousarray(values, np.float32)
    if form == "f32":
        return values.tobytes()
    if form == "f16":
        return values.astype("<f2").tobytes()
    if form == "bf16":
        return to_bf16(values).tobytes()
    return quantize(values, form).tobytes()


def to_bf16(values: np.ndarray) -> np.ndarray:
    """bf16 bits of float32 ``values``, rounded to nearest even: uint16 of the same shape. Values are finite."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype("<u2")


def quantize_channels(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round to nearest with one scale per output: int8 codes of ``[n, k]`` and bf16 scales (uint16 bits) ``[n, 1]``.

    Codes are chosen for the scale as it is stored.
    """
    stored = to_bf16(np.abs(values).max(axis=1, keepdims=True) / np.float32(127))
    scale = (stored.astype(np.uint32) << 16).view(np.float32)
    codes = np.divide(values, scale, out=np.zeros_like(values), where=scale != 0)
    return np.rint(codes).clip(-127, 127).astype(np.int8), stored


def held_as(form: str, name: str) -> str:
    """What a model in ``form`` holds the matrix ``name`` (Hugging Face's) as: of w8a8, embedding and head stay in bf16."""
    return "bf16" if form == "w8a8" and not name.endswith(_LINEAR) else form


def random_weights(form: str, shape: tuple[int, ...], rng: np.random.Generator, deviation: float = 0.05) -> bytes:
    """Random bits as weights of any format, with scales of either sign that make them about ``deviation`` in size.

    Of w8a8 only the codes: its scales are no part of the bytes (``random_tensor`` has both).
    """
    if form not in _SCALES:
        return encode(rng.standard_normal(shape, np.float32) * np.float32(deviation), form)
    count = math.prod(shape) // FORMATS[form].block
    blocks = rng.integers(0, 256, (count, block_bytes(form)), dtype=np.uint8)
    spread = rng.uniform(0.5, 1.5, len(blocks)) * rng.choice((-1.0, 1.0), len(blocks))
    for offset, factor in _SCALES[form]:
        blocks[:, offset : offset + 2] = (deviation * factor * spread).astype("<f2").view(np.uint8).reshape(-1, 2)
    return blocks.tobytes()


def random_tensor(name: str, form: str, shape: tuple[int, ...], rng: np.random.Generator, deviation: float = 0.05) -> Tensor:
    """``random_weights`` as a checkpoint holds them, with the scales of w8a8."""
    data = np.frombuffer(random_weights(form, shape, rng, deviation), np.uint8)
    scales = None
    if form == "w8a8":
        scales = (rng.uniform(0.5, 1.5, shape[0]) * deviation / _CODE).astype(np.float32)
    return Tensor(name, shape, form, data, scales=scales)
