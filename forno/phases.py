"""What a start spends its time on, phase by phase. It knows no phase by name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseClock:
    """``with clock.phase("open"): ...`` notes how long the block took."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, float]] = []
        """Names and seconds, in order."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.phases.append((name, time.perf_counter() - started))
