"""The HTTP side of ``forno serve``: the application on a listening socket, until a signal; then it drains.

Everything that serving needs and loading does not is imported here, so that a start can do both at once.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import shlex
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import uvicorn

from forno import _native
from forno.config import ServerConfig
from forno.engine.build import Built, Loading, attributed
from forno.server.app import build_app
from forno.server.build import serving_of
from forno.server.limits import App
from forno.server.protocol import BoundedProtocol
from forno.server.serving import Serving

log = logging.getLogger("forno.server")

SWITCH_SECONDS = 0.0005
"""How long a thread may hold the interpreter while another wants it. At Python's 5 ms the engine's thread, back from a step
of a few milliseconds, would wait as long again for the event loop's."""


def serve(loading: Loading, config: ServerConfig, keys: tuple[bytes, ...], listener: socket.socket, started: float) -> None:
    """Finish ``loading`` and serve it on ``listener`` until SIGINT or SIGTERM; ``started`` is when, on ``perf_counter``."""
    built = attributed(loading.finish())
    serving = serving_of(built, loading.config, config)
    app = build_app(serving, keys)
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # what start-up made lives as long as the process: never scan it again
    gc.enable()

    def ready() -> None:
        total = serving.metrics.startup_total = time.perf_counter() - started
        print(ready_line(serving, built, listener, total), file=sys.stderr, flush=True)
        built.runner.prefault(loading.config.cache.kv_cache_prefault)

    server = Server(serving, app, config, ready)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(server.serve_on(listener))


def loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def ready_line(serving: Serving, built: Built, listener: socket.socket, total: float) -> str:
    """What a person wants to know once the server is up, ending in a command to paste."""
    host, port = listener.getsockname()[:2]
    url = f"http://{'[' + host + ']' if ':' in host else host}:{port}"
    phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in built.phases)
    # A small model may ramble until its context is full, and the first answer should take seconds.
    body = json.dumps({"model": serving.model, "max_tokens": 100, "messages": [{"role": "user", "content": "Hello!"}]})
    return (
        f"forno is ready: {url} serves {serving.model} on {built.runner.threads} threads ({built.runner.isa}), "
        f"started in {total:.2f} s ({phases})\n"
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )


class Server(uvicorn.Server):
    """uvicorn, with an engine that starts with it and is drained before it stops."""

    def __init__(self, serving: Serving, app: App, config: ServerConfig, ready: Callable[[], None]) -> None:
        """``ready`` is called once connections are accepted."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedProtocol,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=65,
                timeout_graceful_shutdown=5,
                backlog=2048,
            )
        )
        self.serving, self.settings, self.ready = serving, config, ready
        self._drain: asyncio.Task[None] | None = None
        self._stopping = False

    async def serve_on(self, listener: socket.socket) -> None:
        """Serve until a signal, then drain."""
        self._loop = asyncio.get_running_loop()
        self.serving.engine.start()
        folding = asyncio.create_task(self._fold_metrics())
        try:
            await self.serve(sockets=[listener])
        finally:
            folding.cancel()
            await self.serving.engine.stop()
            if self.serving.spans is not None:
                await asyncio.to_thread(self.serving.spans.close)

    @property
    def should_exit(self) -> bool:
        """Whether the server stops. May be set by any thread and by a signal handler."""
        return self._should_exit

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._should_exit = value
        if value and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._leaving.set)

    async def main_loop(self) -> None:
        """uvicorn's wakes ten times a second, for this and for the time in its headers (see ``BoundedProtocol``)."""
        await self._leaving.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()
        _native.trim_memory()  # of what the start needed: a vocabulary as text, and modules being compiled

    def handle_exit(self, sig: int, frame: Any) -> None:
        """First signal: refuse new requests, let the running ones finish. Second: leave at once."""
        if self._stopping or self._loop is None:
            self.force_exit = self.should_exit = True
            return
        self._stopping = True
        self._loop.call_soon_threadsafe(self._start_drain)

    def _start_drain(self) -> None:
        self._drain = asyncio.ensure_future(self._finish())

    async def _finish(self) -> None:
        running = self.serving.engine.stats()
        if running.running or running.waiting:
            log.info(
                "draining %d requests (at most %g s; a second signal leaves at once)",
                running.running + running.waiting,
                self.settings.shutdown_timeout,
            )
        late = await self.serving.engine.drain(self.settings.shutdown_timeout)
        if late:
            log.warning("%d requests did not finish in %g s and were aborted", late, self.settings.shutdown_timeout)
        self.should_exit = True

    async def _fold_metrics(self) -> None:
        """Keep the engine's records short even if nobody scrapes."""
        while True:
            await asyncio.sleep(10)
            self.serving.metrics.fold()
            if self.serving.attribution is not None:
                await asyncio.to_thread(self.serving.attribution.advance)
