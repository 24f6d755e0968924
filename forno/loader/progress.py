"""Progress on stderr: a bar on a terminal, one line elsewhere. stdout is for results."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


def say(message: str) -> None:
    """One line to whoever is waiting."""
    print(message, file=sys.stderr, flush=True)


class Progress:
    """``with Progress("Fetching", total_bytes) as p: p.reach(done_bytes)``. ``done`` may jump, and may exceed the total."""

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = total
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=self._total, desc=self._label, unit="B", unit_scale=True, unit_divisor=1024, file=sys.stderr)
        else:
            say(f"{self._label} ({self._total / (1 << 20):.0f} MiB)")
        return self

    def reach(self, done: int) -> None:
        """``done`` bytes of the total are through."""
        if self._bar is not None:
            self._bar.update(min(done, self._total) - self._bar.n)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            if error is None:
                self.reach(self._total)
            self._bar.close()
