"""What the words of ``forno bench`` that measure share: a console for their tables, and how Ctrl-C ends them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from forno.bench.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED, TERMINATED = 130, 143
"""Exit statuses after Ctrl-C and SIGTERM, as shells have them."""
WIDTH = 160
"""Columns of tables that go into a file or a pipe."""


def console() -> Console:
    """For results, on stdout."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH)


def stop_on_interrupt(progress: Progress, stop: Callable[[], None]) -> None:
    """The first Ctrl-C calls ``stop``, which ends with what is there; a second one leaves at once."""
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        progress.say("stopping; once more to leave at once")
        stop()

    loop.add_signal_handler(signal.SIGINT, interrupted)
