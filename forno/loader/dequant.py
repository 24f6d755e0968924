"""The definition of every weight format: bytes to float32, and float32 to the formats that ``--quantize`` makes.

numpy only, vectorised, no model knowledge. The C++ packing is held against it. Layouts: ggml's block structures.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from forno.errors import CheckpointError
from forno.loader.checkpoint import Tensor
from forno.program.formats import FORMATS

GROUP = 32
"""Weights that share a scale in the formats ``quantize`` makes."""

QUANTIZED_FORMATS = {"int8": "q8_0", "int4": "q4_1"}
"""What ``--quantize`` means. Four bits get a minimum next to the scale: for half a bit more the error is clearly smaller."""

IQ4_NL_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""The 16 levels of IQ4_NL, before the scale."""

_CHUNK = 1 << 22
"""Weights decoded at a time, so that temporaries stay small next to the result."""


def block_bytes(form: str) -> int:
    """Bytes of one block of ``FORMATS[form].block`` weights."""
    spec = FORMATS[form]
    return int(spec.bits * spec.block) // 8


def row_bytes(form: str, columns: int) -> int:
    """Bytes of a row of ``columns`` weights; ``columns`` is a multiple of the format's block."""
    return columns // FORMATS[form].block * block_bytes(form)


def dequantize(tensor: Tensor) -> np.ndarray:
    """The weights as float32 in ``tensor.shape``, rows in the order of the Hugging Face weight (``row_order`` applied)."""
    columns = tensor.shape[-1] if tensor.shape else 1
    assert tensor.data.size == math.prod(tensor.shape[:-1]) * row_bytes(tensor.format, columns), tensor.name
    values = dequantize_bytes(tensor.data, tensor.format).reshape(tensor.shape)
    if tensor.scales is not None:
        values *= tensor.scales[:, None]
    return values if tensor.row_order is None else values[tensor.row_order]


def dequantize_bytes(data: np.ndarray, form: str) -> np.ndarray:
    """Decode uint8 ``data`` (whole blocks, 1-D) of format ``form`` to float32, 1-D; of w8a8 its codes, without a scale."""
    blocks = data.reshape(-1, block_bytes(form))
    block = FORMATS[form].block
    out = np.empty((len(blocks), block), np.float32)
    step = _CHUNK // block
    with np.errstate(invalid="ignore"):  # a damaged scale may be infinite; the result says so, a warning need not
        for start in range(0, len(blocks), step):
            out[start : start + step] = _DECODERS[form](blocks[start : start + step])
    return out.reshape(-1)


def quantize(values: np.ndarray, form: str) -> np.ndarray:
    """Encode float32 ``values`` ``[..., k]``, ``k`` a multiple of 32, as uint8 ``[..., row_bytes(form, k)]``.

    ``form`` is q8_0 or q4_1. Raises ``CheckpointError`` for values that are not finite, or too large for the
    half-precision scale.
    """
    if not np.isfinite(values).all():
        raise CheckpointError("cannot quantize weights that are infinite or not a number; the checkpoint is damaged")
    groups = values.astype(np.float32, copy=False).reshape(-1, GROUP)
    with np.errstate(over="ignore", invalid="ignore"):  # weights too large for a half; refused below
        blocks, scales = _ENCODERS[form](groups)
    if not np.isfinite(scales).all():
        raise CheckpointError(f"cannot quantize weights as large as {np.abs(values).max():g} to {form}")
    return blocks.reshape(*values.shape[:-1], row_bytes(form, values.shape[-1]))


# --- decoding: [n, block bytes] uint8 to [n, block] float32 ---


def _f16(blocks: np.ndarray, begin: int) -> np.ndarray:
    """The half at byte ``begin`` of each block, as float32 ``[n, 1]``."""
    return np.ascontiguousarray(blocks[:, begin : begin + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """``[n, b]`` bytes to ``[n, 2 b]`` values: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(blocks: np.ndarray, begin: int) -> np.ndarray:
    """32 bits at byte ``begin``, bit ``i`` for weight ``i``, as uint8 ``[n, 32]`` of 0 or 16."""
    return np.unpackbits(blocks[:, begin : begin + 4], axis=1, bitorder="little") << 4


def _decode_f32(blocks: np.ndarray) -> np.ndarray:
    return blocks.view("<f4")


def _decode_f16(blocks: np.ndarray) -> np.ndarray:
    return blocks.view("<f2").astype(np.float32)


def _decode_bf16(blocks: np.ndarray) -> np.ndarray:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _decode_q8_0(blocks: np.ndarray) -> np.ndarray:
    return _f16(blocks, 0) * blocks[:, 2:].view(np.int8)


def _decode_w8a8(blocks: np.ndarray) -> np.ndarray:
    return blocks.view(np.int8).astype(np.float32)


def _decode_q4_0(blocks: np.ndarray) -> np.ndarray:
    return _f16(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _decode_q4_1(blocks: np.ndarray) -> np.ndarray:
    return _f16(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _f16(blocks, 2)


def _decode_q5_0(blocks: np.ndarray) -> np.ndarray:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _f16(blocks, 0) * (codes.astype(np.float32) - 16)


def _decode_q5_1(blocks: np.ndarray) -> np.ndarray:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _f16(blocks, 0) * codes.astype(np.float32) + _f16(blocks, 2)


def _decode_iq4_nl(blocks: np.ndarray) -> np.ndarray:
    return _f16(blocks, 0) * IQ4_NL_VALUES[_nibbles(blocks[:, 2:])]


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale and minimum of the eight sub-blocks of Q4_K and Q5_K, float32 ``[n, 8, 1]`` each.

    Sixteen 6-bit numbers in 12 bytes: the first four of each kind in the low bits of bytes 0-3 and 4-7, the last four
    as a nibble in bytes 8-11 with their top two bits in the spare bits of the former.
    """
    packed = blocks[:, 4:16]
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scale = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=1).astype(np.float32)
    minimum = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=1).astype(np.float32)
    return (_f16(blocks, 0) * scale)[:, :, None], (_f16(blocks, 2) * minimum)[:, :, None]


def _k_nibbles(packed: np.ndarray) -> np.ndarray:
    """128 bytes to ``[n, 8, 32]``: of each run of 32 bytes the low nibbles are one sub-block, the high ones the next."""
    runs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(-1, 8, 32)


def _decode_q4_k(blocks: np.ndarray) -> np.ndarray:
    scale, minimum = _k_scales(blocks)
    return (scale * _k_nibbles(blocks[:, 16:]).astype(np.float32) - minimum).reshape(-1, 256)


def _decode_q5_k(blocks: np.ndarray) -> np.ndarray:
    scale, minimum = _k_scales(blocks)
    bit = np.arange(8, dtype=np.uint8)[None, :, None]  # bit s of byte i belongs to weight i of sub-block s
    fifth = (blocks[:, None, 16:48] >> bit & 1) << 4
    codes = _k_nibbles(blocks[:, 48:]) | fifth
    return (scale * codes.astype(np.float32) - minimum).reshape(-1, 256)


def _decode_q6_k(blocks: np.ndarray) -> np.ndarray:
    # Two halves of 128 weights; each is four runs of 32 that share 64 bytes of low nibbles and 32 bytes of bit pairs.
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    shift = np.arange(0, 8, 2, dtype=np.uint8)[None, None, :, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shift & 3) << 4
    codes = (low | high).reshape(-1, 16, 16).astype(np.float32) - 32
    scale = _f16(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return (scale[:, :, None] * codes).reshape(-1, 256)


_DECODERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "f32": _decode_f32,
    "f16": _decode_f16,
    "bf16": _decode_bf16,
    "q8_0": _decode_q8_0,
    "q4_0": _decode_q4_0,
    "q4_1": _decode_q4_1,
    "q5_0": _decode_q5_0,
    "q5_1": _decode_q5_1,
    "q4_k": _decode_q4_k,
    "q5_k": _decode_q5_k,
    "q6_k": _decode_q6_k,
    "iq4_nl": _decode_iq4_nl,
    "w8a8": _decode_w8a8,
}


# --- encoding: [n, 32] float32 to ([n, block bytes] uint8, scales as stored) ---
# Codes are chosen for the scale as it is stored, a half, and rounded to nearest even. All arithmetic is float32, and sums
# run from the first weight to the last, so that another implementation can agree bit for bit.


def _code(groups: np.ndarray, scale: np.ndarray, low: float, high: float) -> np.ndarray:
    """``groups / scale`` rounded and bounded; 0 where the scale is 0."""
    codes = np.divide(groups, scale, out=np.zeros_like(groups), where=scale != 0)
    return np.rint(codes.clip(low, high))


def _encode_q8_0(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``d = amax / 127``, ``q = x / d``."""
    stored = (np.abs(groups).max(axis=1, keepdims=True) / np.float32(127)).astype("<f2")
    codes = _code(groups, stored.astype(np.float32), -127, 127).astype(np.int8)
    return np.concatenate([stored.view(np.uint8), codes.view(np.uint8)], axis=1), stored


def _encode_q4_1(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start from ``m = min``, ``d = (max - min) / 15``, ``q = (x - m) / d``; then take the line ``d q + m`` of least squares
    through these codes and code again, as long as the squared error falls, at most four rounds."""
    low = groups.min(axis=1, keepdims=True)
    line = np.concatenate([(groups.max(axis=1, keepdims=True) - low) / np.float32(15), low], axis=1)
    stored, codes, least = line.astype("<f2"), np.zeros_like(groups), np.full(len(groups), np.inf, np.float32)
    active = np.ones(len(groups), bool)
    for _ in range(4):
        halves = line.astype("<f2")
        scale, minimum = halves[:, :1].astype(np.float32), halves[:, 1:].astype(np.float32)
        tried = _code(groups - minimum, scale, 0, 15)
        error = _sum((groups - (scale * tried + minimum)) ** 2)
        active &= error < least
        least, stored[active], codes[active] = np.where(active, error, least), halves[active], tried[active]
        line, slanted = _least_squares(tried, groups)
        active &= slanted
    packed = codes.astype(np.uint8)
    return np.concatenate([stored.view(np.uint8), packed[:, :16] | packed[:, 16:] << 4], axis=1), stored


def _least_squares(codes: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slope and intercept ``[n, 2]`` of ``groups`` over ``codes``, and whether the codes differ at all ``[n]``."""
    q, qq, x, qx = _sum(codes), _sum(codes * codes), _sum(groups), _sum(codes * groups)
    variance = GROUP * qq - q * q
    slope = (GROUP * qx - q * x) / np.where(variance != 0, variance, np.float32(1))
    return np.stack([slope, (x - slope * q) / GROUP], axis=1), variance != 0


def _sum(values: np.ndarray) -> np.ndarray:
    """Sums along axis 1 from first to last; ``np.sum`` adds pairwise."""
    total: np.ndarray = np.cumsum(values, axis=1, dtype=np.float32)[:, -1]
    return total


_ENCODERS: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {"q8_0": _encode_q8_0, "q4_1": _encode_q4_1}
