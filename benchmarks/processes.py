"""Child processes that never outlive us: each has a session of its own, and all of it ends with the block that started it.

Engines start processes of their own (vLLM's core, a compiler); ending the first of them would not end those. Knows no engine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

STOP_LIMIT = 20.0
"""Seconds that a process may take to end when it is asked to."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = 1024  # /proc counts memory in KiB


class ChildError(RuntimeError):
    """A child failed; the message holds its last words."""


def as_flags(options: Mapping[str, Any]) -> list[str]:
    """Options and their values as the words of a command."""
    return [str(part) for pair in options.items() for part in pair]


@contextmanager
def child(
    command: Sequence[str], output: IO[bytes], errors: IO[bytes], cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``command``; on the way out, however that comes, end it and whatever it has started."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, cwd=cwd, start_new_session=True)
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the first process, then insist on all: a session's first process is its group's leader."""
    try:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_LIMIT)
    finally:  # a second Ctrl-C must not leave anything behind
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def output(command: Sequence[str], cwd: Path | None = None, limit: float | None = None) -> str:
    """Standard output of a command that must succeed within ``limit`` seconds. Raises ``ChildError``."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with child(command, out, err, cwd) as process:
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                raise ChildError(f"{' '.join(command)} took longer than {limit:g} s:\n{tail(err)}") from None
        if status:
            raise ChildError(f"{' '.join(command)} failed with status {status}:\n{tail(err)}")
        out.seek(0)
        return out.read().decode(errors="replace")


def tail(file: IO[bytes], size: int = 2000) -> str:
    """The end of what was written to ``file``."""
    file.seek(0)
    return file.read()[-size:].decode(errors="replace")


def family(root: int) -> list[int]:
    """``root`` and all processes that descend from it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(path.name))
        if fields:
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found = [root]
    for pid in found:  # grows while it is walked
        found += children.get(pid, [])
    return found


def cpu_seconds(root: int) -> float:
    """Processor time of ``root`` and its descendants, those that have ended and been waited for included."""
    return sum(sum(map(int, fields[11:15])) for pid in family(root) if (fields := _stat(pid))) / _TICKS


def resident_mib(root: int) -> float:
    """Memory of ``root`` and its descendants; what they share counts once."""
    total = 0
    for pid in family(root):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / _PAGE


def _stat(pid: int) -> list[str]:
    """``/proc/<pid>/stat`` after the command's name (which may hold anything); empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
