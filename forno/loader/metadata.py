"""GGUF metadata: typed key-value pairs, read from a mapped file through a checked cursor.

Arrays are located while the header is walked and decoded whenever they are asked for, and not kept: a vocabulary of
50,000 tokens is two thirds of the header, much of a start needs none of it, and serving needs it no more.
Source: the GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from forno import _native
from forno.errors import CheckpointError

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")

# Value types of the specification. 8 is a string, 9 an array.
_SCALARS = {
    0: ("<u1", struct.Struct("<B")),
    1: ("<i1", struct.Struct("<b")),
    2: ("<u2", struct.Struct("<H")),
    3: ("<i2", struct.Struct("<h")),
    4: ("<u4", U32),
    5: ("<i4", struct.Struct("<i")),
    6: ("<f4", struct.Struct("<f")),
    7: ("?", struct.Struct("<B")),
    10: ("<u8", U64),
    11: ("<i8", struct.Struct("<q")),
    12: ("<f8", struct.Struct("<d")),
}
_BOOL, _STRING, _ARRAY = 7, 8, 9

# Far above any real file, low enough that a bad count costs a fraction of a second.
_MAX_KEYS = 1 << 14
_MAX_KEY_BYTES = 1 << 16
_MAX_STRING_BYTES = 1 << 26
_MAX_ARRAY_BYTES = 1 << 30
_MAX_STRINGS = 1 << 22
_MAX_NUMBERS = 1 << 24
_MAX_ARRAYS = 1 << 14
_MAX_DEPTH = 4


class Cursor:
    """A position in a mapped file. No read goes past the end; every failure names the file and the byte."""

    __slots__ = ("arrays", "pos", "source", "strings", "view")

    def __init__(self, data: np.ndarray, source: str) -> None:
        self.view = data.data
        self.source = source
        self.pos = 0
        self.strings = self.arrays = 0

    @property
    def remaining(self) -> int:
        return len(self.view) - self.pos

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {what} (at byte {self.pos} of {len(self.view)}); the file is damaged")

    def scalar(self, kind: struct.Struct) -> Any:
        if self.remaining < kind.size:
            raise self.fail("the header ends early")
        (value,) = kind.unpack_from(self.view, self.pos)
        self.pos += kind.size
        return value

    def count(self, what: str, item_bytes: int, limit: int) -> int:
        """A u64 count of items that take at least ``item_bytes`` each: more than fit into the file is an error."""
        value: int = self.scalar(U64)
        if value > limit or value * item_bytes > self.remaining:
            raise self.fail(f"a count of {value} {what} cannot be right")
        return value

    def raw(self, what: str, limit: int) -> bytes:
        """A length-prefixed byte string of at most ``limit`` bytes."""
        size = self.count(f"bytes for {what}", 1, limit)
        value = bytes(self.view[self.pos : self.pos + size])
        self.pos += size
        return value

    def text(self, what: str, limit: int) -> str:
        """A length-prefixed string that has to be UTF-8."""
        raw = self.raw(what, limit)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8: {raw[:40]!r}") from None


class Metadata(Mapping[str, Any]):
    """Metadata by full key. Integers, floats and bools are Python's; arrays are lists.

    A string is ``str``, or ``bytes`` where it is not valid UTF-8 (tokens of byte-level vocabularies may be broken).
    """

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return value.get() if isinstance(value, _Lazy) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values  # the mixin's version would decode the value

    def under(self, prefix: str) -> Metadata:
        """The keys that start with ``prefix``, still with their full names and still undecoded."""
        return Metadata({key: value for key, value in self._values.items() if key.startswith(prefix)})


class _Lazy:
    """An array that is decoded when asked for."""

    __slots__ = ("get",)

    def __init__(self, decode: Callable[[], list[Any]]) -> None:
        self.get = decode


def read_metadata(cursor: Cursor, count: int) -> Metadata:
    """Read ``count`` pairs. Raises ``CheckpointError`` for anything malformed, a key that appears twice included."""
    if count > _MAX_KEYS or count * 13 > cursor.remaining:
        raise cursor.fail(f"a count of {count} metadata keys cannot be right")
    values: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.text("a metadata key", _MAX_KEY_BYTES)
        if key in values:
            raise cursor.fail(f"the metadata key {key!r} appears twice")
        values[key] = _value(cursor, cursor.scalar(U32), key)
    return Metadata(values)


def _value(cursor: Cursor, kind: int, key: str, depth: int = 0) -> Any:
    if kind in _SCALARS:
        value = cursor.scalar(_SCALARS[kind][1])
        return bool(value) if kind == _BOOL else value
    if kind == _STRING:
        return _decode(cursor.raw(key, _MAX_STRING_BYTES))
    if kind == _ARRAY:
        return _array(cursor, key, depth)
    raise cursor.fail(f"{key} has the unknown value type {kind}")


def _array(cursor: Cursor, key: str, depth: int) -> _Lazy | list[Any]:
    cursor.arrays += 1
    if depth >= _MAX_DEPTH or cursor.arrays > _MAX_ARRAYS:
        raise cursor.fail(f"{key} nests too many arrays")
    kind = cursor.scalar(U32)
    if kind in _SCALARS:
        return _numbers(cursor, key, np.dtype(_SCALARS[kind][0]))
    if kind == _STRING:
        return _strings(cursor, key)
    if kind == _ARRAY:
        count = cursor.count(f"arrays for {key}", 12, _MAX_ARRAYS)
        inner = [_array(cursor, key, depth + 1) for _ in range(count)]
        return [item.get() if isinstance(item, _Lazy) else item for item in inner]
    raise cursor.fail(f"{key} is an array of the unknown type {kind}")


def _numbers(cursor: Cursor, key: str, dtype: np.dtype) -> _Lazy:
    count = cursor.count(f"items for {key}", dtype.itemsize, _MAX_NUMBERS)
    start, view = cursor.pos, cursor.view
    cursor.pos += count * dtype.itemsize
    stored = np.dtype("u1") if dtype == np.bool_ else dtype  # any byte but 0 is true

    def decode() -> list[Any]:
        values: list[Any] = np.frombuffer(view, stored, count, start).astype(dtype).tolist()
        return values

    return _Lazy(decode)


def _strings(cursor: Cursor, key: str) -> _Lazy:
    count = cursor.count(f"strings for {key}", 8, _MAX_STRINGS)
    cursor.strings += count
    if cursor.strings > _MAX_STRINGS:
        raise cursor.fail("the metadata hold too many strings")
    start, view = cursor.pos, cursor.view
    try:
        end = _native.skip_strings(view, start, count)
    except ValueError:
        raise cursor.fail(f"a string of {key} ends outside the file") from None
    if end - start > _MAX_ARRAY_BYTES:
        raise cursor.fail(f"the strings of {key} take more than {_MAX_ARRAY_BYTES} bytes")
    cursor.pos = end
    return _Lazy(lambda: _native.read_strings(view, start, count))


def _decode(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
