"""One forno server of our own: started on a free port, watched, and stopped whatever happens. It measures no load."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from forno.errors import ConfigError

START_SECONDS = 600.0
"""Quantizing a large model while loading takes minutes."""
STOP_SECONDS = 10.0
LAST_LINES = 8
_READY = re.compile(r"forno is ready: (\S+) serves (.+?) on (\d+) threads .*started in ([\d.]+) s")


class Server:
    """A running server. Made by ``serving``."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, model: str, start_seconds: float) -> None:
        self.url, self.model, self.start_seconds = url, model, start_seconds
        self._process = process

    def peak_memory(self) -> int | None:
        """Most bytes of memory that it has had resident so far; None where the system does not tell."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return None
        found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
        return int(found[1]) * 1024 if found else None


@asynccontextmanager
async def serving(flags: Sequence[str]) -> AsyncIterator[Server]:
    """A server with these options, ready; it is stopped at the end, by force if it does not go.

    Raises ``ConfigError`` with what it said if it does not start.
    """
    command = [sys.executable, "-m", "forno", "serve", "--port", "0", *flags]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=quiet,
        stdout=quiet,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us, and we stop it
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )
    said: deque[str] = deque(maxlen=LAST_LINES)
    reader: asyncio.Task[None] | None = None
    try:
        started = time.perf_counter()
        ready = await _ready(process, said)
        reader = asyncio.create_task(_drain(process, said))
        yield Server(process, ready[1], ready[2], time.perf_counter() - started)
    finally:
        await _stop(process)
        if reader is not None:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader


def _die_with_parent() -> None:
    """In the child: be terminated should the parent be killed before it can stop us (prctl(2), PR_SET_PDEATHSIG)."""
    import ctypes

    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))


async def _ready(process: asyncio.subprocess.Process, said: deque[str]) -> re.Match[str]:
    """Read what it says until it is ready."""
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            while line := await process.stderr.readline():
                text = line.decode(errors="replace").rstrip()
                said.append(text)
                if found := _READY.search(text):
                    return found
    except TimeoutError:
        raise ConfigError(f"the server was not ready after {START_SECONDS:g} s: {_last(said)}") from None
    raise ConfigError(f"the server did not start: {_last(said)}")


def _last(said: deque[str]) -> str:
    return said[-1] if said else "it said nothing"


async def _drain(process: asyncio.subprocess.Process, said: deque[str]) -> None:
    """Read on, so that it never waits for a reader."""
    assert process.stderr is not None
    while line := await process.stderr.readline():
        said.append(line.decode(errors="replace").rstrip())


async def _stop(process: asyncio.subprocess.Process) -> None:
    for sign, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(sign)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.shield(process.wait())
