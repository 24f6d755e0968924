"""The packed image: the memory of a model's matrices as a file, so that the next start reads what this one packed.

    magic  uint32 version  uint32 size of the header  sha256 of the header  header (JSON)  zeros  payload

all little-endian. The payload begins at a multiple of 4096 and is the memory's bytes up to the end of the file. The header
holds the table of matrices, a checksum of every chunk of the payload, and what the matrices were made of (``made_of``, which
this module does not look into). Every number is checked before it is used, and nothing but the exact table that a program
wants is ever read. Vectors are not in it: they are few, and come from the model as ever.

Knows neither where images lie nor when one pays: ``forno.runner.weights`` does.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forno import _native
from forno.kernels.cpu.pack import PackedWeights, StoredTensor, matrix_keys, matrix_shape, reserve
from forno.program.program import Program

MAGIC = b"fornopak"
VERSION = 1_000 + int(_native.PACKED_LAYOUT)
"""Thousands: of this file format. The rest: of the layouts in packed.hpp, which tell when to raise it."""
ALIGNMENT = 4096
_PREFIX = struct.Struct("<8sII32s")
_MAX_HEADER_BYTES = 64 << 20
_PART_BYTES = 8 << 20


class ImageError(Exception):
    """A file that is no image, or not the one that is wanted; the message completes "ignored, because ..."."""


def table_of(program: Program) -> list[Any]:
    """Names, format, rows, columns and whether interleaved of every matrix of ``program``, in order, as JSON holds them."""
    return [[list(key), *matrix_shape(program, key)] for key in matrix_keys(program)]


def image_parts(program: Program, weights: PackedWeights, made_of: Any, threads: int) -> Iterator[bytes | memoryview]:
    """The image of ``weights``, packed for ``program``, piece by piece. ``made_of`` is any JSON value."""
    sums = np.array(weights.memory.checksums(threads), "<u8")
    content = memoryview(weights.memory.content)
    header = json.dumps(
        {"table": table_of(program), "bytes": len(content), "checksums": sums.tobytes().hex(), "made_of": made_of}
    ).encode()
    start = _PREFIX.pack(MAGIC, VERSION, len(header), hashlib.sha256(header).digest()) + header
    yield start + bytes(-len(start) % ALIGNMENT)
    for at in range(0, len(content), _PART_BYTES):
        yield content[at : at + _PART_BYTES]


@dataclass(frozen=True, slots=True)
class Image:
    """An open image whose header is sound. Used as a context manager, it closes its file."""

    file: int
    size: int
    offset: int
    header: Mapping[str, Any]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Image:
        """Raises ``FileNotFoundError`` if there is none, ``ImageError`` for whatever is there instead."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not make us wait
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ImageError(f"it cannot be opened: {error.strerror}") from error
        try:
            return cls._read(file)
        except OSError as error:
            os.close(file)
            raise ImageError(f"it cannot be read: {error.strerror}") from error
        except BaseException:
            os.close(file)
            raise

    @classmethod
    def _read(cls, file: int) -> Image:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode):
            raise ImageError("it is not a regular file")
        start = os.pread(file, _PREFIX.size, 0)
        if len(start) < _PREFIX.size or not start.startswith(MAGIC):
            raise ImageError("it does not begin as an image does")
        _, version, length, digest = _PREFIX.unpack(start)
        if version != VERSION:
            raise ImageError(f"it is of version {version}, this is version {VERSION}")
        offset = -(-(_PREFIX.size + length) // ALIGNMENT) * ALIGNMENT
        if length > _MAX_HEADER_BYTES or offset > info.st_size:
            raise ImageError("it is truncated")
        rest = os.pread(file, offset - _PREFIX.size, _PREFIX.size)
        header = rest[:length]
        if hashlib.sha256(header).digest() != digest or len(rest) != offset - _PREFIX.size or any(rest[length:]):
            raise ImageError("its header is damaged")
        return cls(file, info.st_size, offset, _parsed(header))

    @property
    def made_of(self) -> Any:
        return self.header.get("made_of")

    def read(self, program: Program, tensors: Mapping[str, StoredTensor], threads: int) -> PackedWeights:
        """The weights of ``program``, vectors from ``tensors``. Other Python threads run meanwhile.

        Raises ``ImageError`` if they are not what is in the file, ``CheckpointError`` as ``pack_weights`` does.
        """
        if self.header.get("table") != table_of(program):
            raise ImageError("it holds other matrices or formats")
        weights = reserve(program, tensors)
        size = len(weights.memory.content)
        if self.header.get("bytes") != size or self.size != self.offset + size:
            raise ImageError(f"it has {self.size} bytes, not {self.offset + size}")
        failure = weights.memory.read(self.file, self.offset, self._checksums(), threads)
        if failure is not None:
            raise ImageError(f"{failure}; it is damaged")
        return weights

    def _checksums(self) -> list[int]:
        text = self.header.get("checksums")
        try:
            return [int(value) for value in np.frombuffer(bytes.fromhex(text), "<u8")]  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise ImageError("its checksums are damaged") from error

    def __enter__(self) -> Image:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.file)


def _parsed(header: bytes) -> dict[str, Any]:
    try:
        value = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ImageError("its header is no JSON") from error
    if not isinstance(value, dict):
        raise ImageError("its header is no JSON object")
    return value
