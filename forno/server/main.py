"""``forno serve``: build the engine, say that it is ready, serve until told to stop, drain."""

from __future__ import annotations

import argparse
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

from forno import env
from forno.config import DEFAULT_MODEL, ENGINE_PARTS, ServerConfig
from forno.engine.build import Built, engine_config_of
from forno.errors import ConfigError
from forno.options import add_options, from_args
from forno.server.app import build_app
from forno.server.build import open_serving
from forno.server.limits import App, load_keys
from forno.server.protocol import BoundedProtocol
from forno.server.serving import Serving

log = logging.getLogger("forno.server")

SWITCH_SECONDS = 0.0005
"""How long a thread may hold the interpreter while another wants it. At Python's 5 ms the engine's thread, back from a step
of a few milliseconds, would wait as long again for the event loop's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("positional_model", nargs="?", metavar="MODEL", help="The same as --model.")
    add_options(parser, ServerConfig, *ENGINE_PARTS.values())


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; 0 after a clean drain."""
    started = time.perf_counter()
    _configure_logging()
    if args.positional_model is not None:
        if args.model not in (DEFAULT_MODEL, args.positional_model):
            raise ConfigError(f"two models were named, {args.positional_model!r} and --model {args.model!r}: name one")
        args.model = args.positional_model
    config = from_args(ServerConfig, args)
    keys = load_keys(config.api_key, config.api_key_file, env.API_KEY.get())
    listener = bind(config)
    try:
        serving, built = open_serving(engine_config_of(args), config)
        app = build_app(serving, keys)
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.collect()
        gc.freeze()  # what start-up made lives as long as the process: never scan it again

        def ready() -> None:
            print(ready_line(serving, built, listener, time.perf_counter() - started), file=sys.stderr, flush=True)

        server = Server(serving, app, config, ready)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(server.serve_on(listener))
    finally:
        listener.close()
    return 0


def _configure_logging() -> None:
    level = env.LOG_LEVEL.get().upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ConfigError(f"{env.LOG_LEVEL.name}={level.lower()!r} is not debug, info, warning or error")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if level == "INFO":
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # its start and stop lines repeat ours


def loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def bind(config: ServerConfig) -> socket.socket:
    """The listening socket, bound before the model loads so that a taken port fails at once."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off; else small answers wait for delayed acknowledgements.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error).removeprefix("bind(): ").rstrip(".")
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {reason}; choose another --port or --host") from error
    return listener


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
        self._loop: asyncio.AbstractEventLoop | None = None
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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

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
