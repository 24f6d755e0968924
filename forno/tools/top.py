"""``forno top``: what a running server waits for, now: a view that refreshes, or the same as JSON. It knows no engine."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from forno import env
from forno.bench.ask import base_url
from forno.bench.extra import need
from forno.errors import ConfigError, UnreachableError
from forno.tools.watch import Watch

LEAST_INTERVAL, MOST_INTERVAL = 0.1, 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="The server (default: %(default)s).")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="Between refreshes (default: %(default)s)."
    )
    parser.add_argument("--once", action="store_true", help="Show one view and leave; 1 if the server does not answer.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object per refresh instead of the view.")
    parser.add_argument("--api-key", default="", metavar="KEY", help="The server's key; default: $FORNO_API_KEY.")


def run(args: argparse.Namespace) -> int:
    """Watch until Ctrl-C; 0."""
    if not LEAST_INTERVAL <= args.interval <= MOST_INTERVAL:
        raise ConfigError(f"--interval must be {LEAST_INTERVAL:g} to {MOST_INTERVAL:g} seconds, got {args.interval:g}")
    watch = Watch(base_url(args.url), args.api_key or env.API_KEY.get())
    try:
        if args.json:
            print_json(watch, args.interval, args.once)
        else:
            show(watch, args.interval, args.once)
    except KeyboardInterrupt:  # the way to leave
        pass
    return 0


def print_json(watch: Watch, interval: float, once: bool) -> None:
    """One line per refresh: the server's state, and what this side made of it. Raises ``UnreachableError`` if ``once``."""
    while True:
        try:
            line = as_json(watch, time.monotonic())
        except UnreachableError as error:
            if once:
                raise
            line = {"error": str(error)}
        print(json.dumps(line), flush=True)
        if once:
            return
        time.sleep(interval)


def as_json(watch: Watch, now: float) -> dict[str, Any]:
    """``seconds``: how long the time is that shares and percentiles (in seconds) cover; null: since the server's start."""
    sample = watch.ask(now)
    return {"state": sample.raw, "seconds": watch.seconds, "shares": watch.shares(), "percentiles": watch.percentiles()}


def show(watch: Watch, interval: float, once: bool) -> None:
    """Draw until interrupted. Without a terminal, print one view per refresh. Raises ``UnreachableError`` if ``once``."""
    console = _console()
    from forno.tools.panels import view

    def frame(problem: str = "") -> Any:
        height = console.height if console.is_terminal and not once else 60
        return view(watch, console.width, height, console.color_system is not None, problem)

    if once:
        watch.ask(time.monotonic())
        console.print(frame())
        return
    if not console.is_terminal:
        _repeat(watch, interval, lambda problem: console.print(frame(problem)))
    from rich.live import Live

    with Live(frame(), console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        _repeat(watch, interval, lambda problem: live.update(frame(problem), refresh=True))


def _repeat(watch: Watch, interval: float, draw: Callable[[str], Any]) -> None:
    """Ask and draw, for ever: a server that is gone may come back."""
    lost = None
    while True:
        try:
            watch.ask(time.monotonic())
            lost, problem = None, ""
        except UnreachableError as error:
            lost = time.monotonic() if lost is None else lost
            problem = f"trying again for {time.monotonic() - lost:.0f} s: {error}"
        draw(problem)
        time.sleep(interval)


def _console() -> Any:
    need("rich", what="forno top without --json")
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False)
