"""Files are replaced whole or not at all, whatever goes wrong on the way, and one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from forno.loader import whole
from forno.loader.whole import write_whole

PARTS = (b"new" * 1000, memoryview(b"er" * 1000))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_new_file_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    (tmp_path / "x.tmp").write_bytes(b"what a killed process left, longer than the file" * 1000)
    assert write_whole(path, PARTS, 5000, 0o640)
    assert path.read_bytes() == b"".join(PARTS)
    assert names(tmp_path) == {"x"}


def test_the_file_may_be_read_by_whom_the_mode_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        assert write_whole(tmp_path / "x", PARTS, 5000, 0o660)
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt(), InterruptedError("enough")])
def test_what_fails_in_between_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    def parts() -> Iterator[bytes]:
        yield PARTS[0]
        raise error

    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(type(error)):
        write_whole(path, parts(), 5000)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == {"x"}


def test_a_disk_that_is_nearly_full_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(whole.shutil, "disk_usage", lambda _: usage(whole._SPARE_BYTES + 4999))
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "x", PARTS, 5000)
    assert not names(tmp_path)
    assert write_whole(tmp_path / "x", PARTS, 4999)


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path) -> None:
    """The limit of a file's size stands for the disk's, in a process of its own."""
    code = """
import resource, sys
from pathlib import Path
from forno.loader.whole import write_whole
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
try:
    write_whole(Path(sys.argv[1]), [bytes(3000), bytes(3000)], 6000)
except OSError as error:
    print(error.strerror)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == os.strerror(errno.EFBIG), done.stderr
    assert not names(tmp_path)


def test_a_writer_that_is_killed_leaves_the_old_file_and_stands_in_nobodys_way(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from forno.loader.whole import write_whole
def parts():
    yield bytes(3000)
    os.kill(os.getpid(), signal.SIGKILL)
write_whole(Path(sys.argv[1]), parts(), 6000)
"""
    path = tmp_path / "x"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert write_whole(path, PARTS, 5000)
    assert path.read_bytes() == b"".join(PARTS)
    assert names(tmp_path) == {"x"}


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "x"
    second: list[bool] = []

    def parts() -> Iterator[bytes]:
        yield b"first"
        second.append(write_whole(path, [b"second"], 6))

    assert write_whole(path, parts(), 5)
    assert second == [False]
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == {"x"}


def test_a_writer_that_comes_as_another_finishes_does_not_touch_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has opened the temporary file, which becomes the finished one before it gets the lock."""
    path = tmp_path / "x"
    lock = fcntl.flock

    def late(file: int, flags: int) -> None:
        os.replace(tmp_path / "x.tmp", path)
        path.write_bytes(b"finished")
        lock(file, flags)

    monkeypatch.setattr(whole.fcntl, "flock", late)
    assert not write_whole(path, PARTS, 5000)
    assert path.read_bytes() == b"finished"
    assert names(tmp_path) == {"x"}


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        write_whole(tmp_path / "absent" / "x", PARTS, 5000)
    (tmp_path / "x.tmp").symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        write_whole(tmp_path / "x", PARTS, 5000)
    assert names(tmp_path) == {"x.tmp"}
