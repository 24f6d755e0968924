"""Real processes: one that becomes ready, one that does not start, and none that is left behind."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from forno import env
from forno.bench.ablate.server import serving
from forno.errors import ConfigError
from tests.helpers.gguf_writer import write_tiny_gguf


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
