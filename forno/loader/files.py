"""Opens what is on disk with suspicion: maps a regular file read-only, parses JSON strictly.

Knows no model format. Everything that can go wrong here becomes a named error with the path in it.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from forno.errors import CheckpointError, ModelError

MAX_JSON_BYTES = 128 << 20
"""Largest JSON file read; the largest tokenizer configs are a few megabytes."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file in one state: another one that equals it has the same content.

    The time of change is among it, which nobody can set back as one can the time of modification.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


def source_file(path: str | Path) -> SourceFile:
    """The state of ``path`` now. Taken before the file is mapped, it is of what is mapped, or differs from any later one.

    Raises ``ModelError`` if there is no such file.
    """
    try:
        info = os.stat(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot open {path}: {getattr(error, 'strerror', None) or error}") from error
    return SourceFile(str(path), info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


def map_file(path: Path) -> np.ndarray:
    """The file's bytes: uint8, 1-D, read-only, mapped (nothing is read yet). The mapping lives as long as the array.

    Raises ``ModelError`` if it cannot be opened, ``CheckpointError`` if it is empty.
    """
    try:
        # Checked before open(): opening a pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ModelError(f"{path} is not a regular file")
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise CheckpointError(f"{path} is empty; fetch it again")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"cannot open {path}: {error.strerror or error}") from error
    return np.frombuffer(mapped, np.uint8)


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``. Raises ``ModelError`` if unreadable, ``CheckpointError`` if it is no strict JSON object."""
    return parse_json_object(read_bytes(path), str(path))


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """The content of a small file. Raises ``ModelError``, or ``CheckpointError`` beyond ``limit`` bytes."""
    data = map_file(path).data
    if len(data) > limit:
        raise CheckpointError(f"{path} has {len(data)} bytes, more than the {limit} such a file may have")
    return bytes(data)


def parse_json_object(raw: bytes, source: str) -> dict[str, Any]:
    """Parse strictly: UTF-8, no NaN or infinity, no key twice, an object at the top. ``source`` is for messages."""
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise CheckpointError(f"{source}: the JSON is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, the hooks below, integers of thousands of digits
        raise CheckpointError(f"{source}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{source}: expected a JSON object, found {type(value).__name__}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} appears twice")
    return result


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)
