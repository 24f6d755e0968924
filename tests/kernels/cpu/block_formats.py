"""What each block format's bytes mean, in numpy and fp32: the definition that packing is tested against.

Knows nothing of the packed layout. Source: the GGUF specification; ``test_packed`` checks it against the gguf package.
"""

from __future__ import annotations

import numpy as np

BLOCK = {"f32": 1, "f16": 1, "bf16": 1, "q4_k": 256, "q5_k": 256, "q6_k": 256}
"""Weights per block of the file; 32 where not listed."""
BLOCK_BYTES = {
    "f32": 4,
    "f16": 2,
    "bf16": 2,
    "q8_0": 34,
    "q4_0": 18,
    "q4_1": 20,
    "q5_0": 22,
    "q5_1": 24,
    "q4_k": 144,
    "q5_k": 176,
    "q6_k": 210,
    "iq4_nl": 18,
}
HALVES = {"q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}
"""Byte offsets of a block's fp16 scales; (0,) where not listed."""
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
FORMATS = tuple(BLOCK_BYTES)


def random_weight(rng: np.random.Generator, fmt: str, n: int, k: int) -> np.ndarray:
    """Bytes of a random ``[n, k]`` weight, uint8 and 1-D: any codes, scales that keep weights around 1."""
    if fmt in ("f32", "f16"):
        return rng.standard_normal((n, k)).astype({"f32": np.float32, "f16": np.float16}[fmt]).reshape(-1).view(np.uint8)
    if fmt == "bf16":
        return (
            (rng.standard_normal((n, k)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).reshape(-1).view(np.uint8)
        )
    blocks = rng.integers(0, 256, (n * k // BLOCK.get(fmt, 32), BLOCK_BYTES[fmt]), dtype=np.uint8)
    size = {"q8_0": 0.01, "iq4_nl": 0.01, "q4_k": 0.003, "q5_k": 0.002, "q6_k": 0.0005}.get(fmt, 0.1)
    for offset in HALVES.get(fmt, (0,)):
        halves = (rng.standard_normal(len(blocks)) * size).astype(np.float16)
        blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


def dequantize(fmt: str, data: np.ndarray, n: int, k: int) -> np.ndarray:
    """f32 ``[n, k]``."""
    if fmt == "f32":
        return data.view(np.float32).reshape(n, k)
    if fmt == "f16":
        return data.view(np.float16).astype(np.float32).reshape(n, k)
    if fmt == "bf16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(n, k)
    blocks = data.reshape(-1, BLOCK_BYTES[fmt])
    decode = _K_QUANTS[fmt] if fmt in _K_QUANTS else lambda b: _simple(fmt, b)
    return decode(blocks).reshape(n, k)


def _half(b: np.ndarray, offset: int) -> np.ndarray:
    return np.ascontiguousarray(b[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def _nibbles(b: np.ndarray) -> np.ndarray:
    """16 bytes to 32 codes: the low nibbles, then the high ones."""
    return np.concatenate([b & 15, b >> 4], axis=1)


def _simple(fmt: str, b: np.ndarray) -> np.ndarray:
    d = _half(b, 0)
    if fmt == "q8_0":
        return d * b[:, 2:].view(np.int8).astype(np.float32)
    q = _nibbles(b[:, -16:]).astype(np.float32)
    if fmt == "iq4_nl":
        return d * IQ4_VALUES[q.astype(int)]
    if fmt in ("q5_0", "q5_1"):
        bits = np.unpackbits(b[:, -20:-16], axis=1, bitorder="little")
        q = q + 16 * bits.astype(np.float32)
    if fmt in ("q4_1", "q5_1"):
        return d * q + _half(b, 2)
    return d * (q - (8 if fmt == "q4_0" else 16))


def _k45(b: np.ndarray, five: bool) -> np.ndarray:
    d, dmin, s = _half(b, 0), _half(b, 2), b[:, 4:16]
    scale = np.concatenate([s[:, :4] & 63, (s[:, 8:] & 15) | (s[:, :4] >> 6) << 4], axis=1).astype(np.float32)
    minimum = np.concatenate([s[:, 4:8] & 63, (s[:, 8:] >> 4) | (s[:, 4:8] >> 6) << 4], axis=1).astype(np.float32)
    pairs = b[:, -128:].reshape(-1, 4, 1, 32)
    q = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)
    if five:
        q = q | ((b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1) << 4
    return (d * scale)[:, :, None] * q.astype(np.float32) - (dmin * minimum)[:, :, None]


def _q6_k(b: np.ndarray) -> np.ndarray:
    low = b[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = b[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[None, None, :, None] & 3
    q = (low | high << 4).astype(np.float32).reshape(-1, 16, 16) - 32
    return (_half(b, 208) * b[:, 192:208].view(np.int8).astype(np.float32))[:, :, None] * q


_K_QUANTS = {"q4_k": lambda b: _k45(b, False), "q5_k": lambda b: _k45(b, True), "q6_k": _q6_k}


def quantize_s8(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Activations ``[m, k]`` in groups of 32: int8 ``[m, k]``, f32 scale and int32 sum ``[m, k / 32]``."""
    groups = x.astype(np.float32).reshape(len(x), -1, 32)
    amax = np.abs(groups).max(axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(amax > 0, np.float32(127) / amax, np.float32(0))
    q = np.rint(groups * inverse[:, :, None])
    return q.astype(np.int8).reshape(x.shape), amax / np.float32(127), q.sum(axis=2).astype(np.int32)


def round_bf16(x: np.ndarray) -> np.ndarray:
    """The bits of ``x`` (finite) rounded to bfloat16, to nearest even."""
    u = x.astype(np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)
