"""Real processes: one that becomes ready, one that does not start, and none that is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forno import env
from forno.bench.ablate.server import serving
from forno.errors import ConfigError
from tests.helpers.gguf_writer import write_tiny_gguf
from tests.helpers.tiny import TinyModel
from tests.server.harness import eventually


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_is_ready_and_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.CACHE_DIR.name, str(tmp_path / "cache"))
    model = write_tiny_gguf(tmp_path / "tiny.gguf")

    async def visit() -> tuple[int, int | None, float]:
        async with serving(["--model", str(model), "--threads", "1", "--num-blocks-override", "64"]) as server:
            assert server.url.startswith("http://127.0.0.1:")
            assert server.model == "tiny"
            pid = server._process.pid
            assert alive(pid)
            memory, seconds = server.peak_memory(), server.start_seconds
        return pid, memory, seconds

    pid, memory, seconds = asyncio.run(visit())
    assert not alive(pid)
    assert memory is None or memory > 10_000_000
    assert seconds > 0


def test_cancelling_stops_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.CACHE_DIR.name, str(tmp_path / "cache"))
    model, pids = write_tiny_gguf(tmp_path / "tiny.gguf"), []

    async def visit() -> None:
        async with serving(["--model", str(model), "--threads", "1", "--num-blocks-override", "64"]) as server:
            pids.append(server._process.pid)
            ready.set()
            await asyncio.Event().wait()

    async def cancelled() -> None:
        task = asyncio.create_task(visit())
        await ready.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    ready = asyncio.Event()
    asyncio.run(cancelled())
    assert not alive(pids[0])


def test_why_a_server_did_not_start_is_said(tmp_path: Path) -> None:
    async def visit() -> None:
        async with serving(["--model", str(tmp_path / "missing.gguf")]):
            pass

    with pytest.raises(ConfigError, match=r"the server did not start: .*missing\.gguf"):
        asyncio.run(visit())


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_no_server_outlives_the_command(tmp_path: Path, sign: signal.Signals) -> None:
    """Whatever ends the command in the middle of a run."""
    model = write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(context=4096))
    words = ["--model", str(model), "--serve=--threads 1", "--only", "static", "--rate", "0.01", "--input-tokens", "20"]
    process = subprocess.Popen(
        [sys.executable, "-m", "forno", "bench", "ablate", *words, "--no-progress"],
        env=env.child_environment(**{env.CACHE_DIR.name: str(tmp_path / "cache")}),
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: bool(children(process.pid)), 60.0)
        (server,) = children(process.pid)
        process.send_signal(sign)
        eventually(lambda: not running(server), 60.0)
    finally:
        process.kill()
        process.wait()


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def running(pid: int) -> bool:
    """Alive, and not just waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
