"""Reads GGUF files (version 2 and 3, little-endian): header, metadata and tensors, as they lie in the file.

It does not know what a model is: names, shapes and metadata keep the file's own meaning (``gguf_names`` translates).
Every count, length, offset and dimension is checked in Python's unbounded integers before it is used.
Source: the GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forno.errors import CheckpointError, UnsupportedError
from forno.loader.checkpoint import Tensor
from forno.loader.dequant import row_bytes
from forno.loader.files import map_file
from forno.loader.metadata import U32, U64, Cursor, Metadata, read_metadata
from forno.program.formats import FORMATS

MAGIC = b"GGUF"

TENSOR_TYPES = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    20: "iq4_nl",
    30: "bf16",
}
"""GGUF tensor type to a key of ``FORMATS``: what forno computes with."""

_OTHER_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}

_MAX_TENSORS = 1 << 16
_MAX_NAME_BYTES = 1 << 10
_MAX_DIMS = 4
_MAX_ALIGNMENT = 1 << 20


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A parsed file. ``tensors`` are by the file's own names, shapes slowest dimension first, without ``row_order``."""

    path: str
    version: int
    alignment: int
    metadata: Metadata
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    shape: tuple[int, ...]
    format: str
    offset: int
    """Bytes from the start of the data section."""
    size: int


def read_gguf(path: Path) -> GgufFile:
    """Open and check ``path``. The data stay on disk until they are touched.

    Raises ``ModelError`` (cannot be opened), ``CheckpointError`` (malformed), ``UnsupportedError`` (version, tensor type).
    """
    data = map_file(path)
    cursor = Cursor(data, str(path))
    version = _version(cursor)
    tensor_count = cursor.count("tensors", 24, _MAX_TENSORS)
    metadata = read_metadata(cursor, cursor.scalar(U64))
    alignment = _alignment(cursor, metadata)
    infos = [_tensor_info(cursor) for _ in range(tensor_count)]
    start = cursor.pos + -cursor.pos % alignment
    _check_ranges(cursor, infos, alignment, len(data) - start)
    tensors: dict[str, Tensor] = {}
    for info in infos:
        begin = start + info.offset
        tensors[info.name] = Tensor(info.name, info.shape, info.format, data[begin : begin + info.size])
    if len(tensors) != len(infos):
        raise cursor.fail("two tensors have the same name")
    return GgufFile(str(path), version, alignment, metadata, tensors)


def _version(cursor: Cursor) -> int:
    magic = bytes(cursor.view[:4])
    if magic != MAGIC:
        raise CheckpointError(f"{cursor.source} is not a GGUF file: it starts with {magic!r}, not {MAGIC!r}")
    cursor.pos = 4
    version: int = cursor.scalar(U32)
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0 and version:
        raise UnsupportedError(f"{cursor.source} is a big-endian GGUF file; forno reads little-endian ones")
    raise UnsupportedError(f"{cursor.source} is GGUF version {version}; forno reads versions 2 and 3")


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or not 1 <= value <= _MAX_ALIGNMENT or value & (value - 1):
        raise cursor.fail(f"general.alignment is {value!r}, not a power of two up to {_MAX_ALIGNMENT}")
    return value


def _tensor_info(cursor: Cursor) -> _TensorInfo:
    name = cursor.text("a tensor name", _MAX_NAME_BYTES)
    num_dims = cursor.scalar(U32)
    if not 1 <= num_dims <= _MAX_DIMS:
        raise cursor.fail(f"tensor {name!r} has {num_dims} dimensions")
    dims = [cursor.scalar(U64) for _ in range(num_dims)]
    kind, offset = cursor.scalar(U32), cursor.scalar(U64)
    if 0 in dims or math.prod(dims) > 8 * len(cursor.view):
        # No supported format takes less than a bit per weight.
        raise cursor.fail(f"tensor {name!r} has the shape {dims}, more than the file could hold, or nothing")
    if kind not in TENSOR_TYPES:
        supported = ", ".join(name.upper() for name in TENSOR_TYPES.values())
        label = _OTHER_TYPES.get(kind, f"number {kind}")
        raise UnsupportedError(f"{cursor.source}: tensor {name!r} has the type {label}; forno supports {supported}")
    form = TENSOR_TYPES[kind]
    if dims[0] % FORMATS[form].block:
        raise cursor.fail(f"tensor {name!r} has rows of {dims[0]}, no multiple of {form.upper()}'s {FORMATS[form].block}")
    size = math.prod(dims[1:]) * row_bytes(form, dims[0])
    return _TensorInfo(name, tuple(reversed(dims)), form, offset, size)


def _check_ranges(cursor: Cursor, infos: list[_TensorInfo], alignment: int, available: int) -> None:
    """Every tensor is aligned and inside the data section of ``available`` bytes; no two overlap."""
    end = 0
    for info in sorted(infos, key=lambda info: info.offset):
        if info.offset % alignment:
            raise cursor.fail(f"tensor {info.name!r} starts at {info.offset}, no multiple of the alignment {alignment}")
        if info.offset < end:
            raise cursor.fail(f"tensor {info.name!r} overlaps the one before it")
        end = info.offset + info.size
        if end > available:
            raise CheckpointError(
                f"{cursor.source}: tensor {info.name!r} needs {end - available} bytes more than the file has; "
                "the file is truncated: fetch it again"
            )


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do; false if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False
