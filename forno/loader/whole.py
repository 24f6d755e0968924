"""Puts a file in its place whole or not at all. It knows nothing of what is in it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

_SPARE_BYTES = 256 << 20
"""Left free on the disk for others."""


def write_whole(path: Path, parts: Iterable[bytes | memoryview], size: int, mode: int = 0o666) -> bool:
    """Write ``parts``, about ``size`` bytes, to ``path``; whoever reads it sees the old file or all of the new one.

    Returns False, with nothing written, while another process is writing the same file. What one that was killed left
    behind is written over. Raises ``OSError``, with nothing left behind, if the disk is full or the folder read-only, and
    whatever ``parts`` raises.
    """
    if shutil.disk_usage(path.parent).free < size + _SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path.parent))
    temporary = path.with_name(path.name + ".tmp")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        if not _lock(file, temporary):
            return False
        try:
            os.ftruncate(file, 0)
            for part in parts:
                _write(file, part)
            os.fsync(file)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    finally:
        os.close(file)
    sync_directory(path.parent)
    return True


def _lock(file: int, path: Path) -> bool:
    """Whether ``path`` is ours alone until ``file`` is closed. It may have become somebody's finished file meanwhile."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def _write(file: int, part: bytes | memoryview) -> None:
    rest = memoryview(part)
    while rest:
        rest = rest[os.write(file, rest) :]


def sync_directory(directory: Path) -> None:
    """Make the names in it outlive a crash of the machine."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
