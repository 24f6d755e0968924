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

    return Console(width=None if sys.stdout.isatty() else WIDTH, markup=False)


def stop_on_interrupt(progress: Progress, stop: Callable[[], None], *signals: signal.Signals) -> None:
    """The first Ctrl-C, or other of ``signals``, calls ``stop``, which ends with what is there; a second one leaves at once."""
    loop = asyncio.get_running_loop()
    caught = signals or (signal.SIGINT,)

    def interrupted() -> None:
        for name in caught:
            loop.remove_signal_handler(name)
            signal.signal(name, signal.default_int_handler if name is signal.SIGINT else signal.SIG_DFL)
        progress.say("stopping; once more to leave at once")
        stop()

    for name in caught:
        loop.add_signal_handler(name, interrupted)
