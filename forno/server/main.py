"""``forno serve``: check the options, take the port, load the model, and hand over to ``forno.server.serve``."""

from __future__ import annotations

import argparse
import gc
import logging
import socket
import sys
import time

from forno import env
from forno.config import DEFAULT_MODEL, ENGINE_PARTS, ServerConfig
from forno.errors import ConfigError
from forno.options import add_options, from_args
from forno.server.goodput import parse_slo
from forno.server.limits import load_keys


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
    parse_slo(config.slo)  # a mistake in these must not cost the time to load a model
    if config.otlp_traces_endpoint:
        from forno.server.spans import traces_url

        traces_url(config.otlp_traces_endpoint)
    keys = load_keys(config.api_key, config.api_key_file, env.API_KEY.get())
    listener = bind(config)
    gc.disable()  # until the start is over: nearly all that it makes stays
    try:
        from forno.engine.build import Loading, engine_config_of

        loading = Loading(engine_config_of(args))
        from forno.server.serve import serve  # only now: the model is packed while the server's modules load

        serve(loading, config, keys, listener, started)
    finally:
        gc.enable()
        listener.close()
    return 0


def _configure_logging() -> None:
    level = env.LOG_LEVEL.get().upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ConfigError(f"{env.LOG_LEVEL.name}={level.lower()!r} is not debug, info, warning or error")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if level == "INFO":
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # its start and stop lines repeat ours


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
