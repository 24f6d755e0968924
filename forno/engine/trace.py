"""What happened to whom: a bounded ring of events, cheap enough to be always on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from forno.scheduler.sequence import Event


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One thing that happened to one request. ``Event`` says what ``number`` counts."""

    time: float
    """Seconds on the engine's clock."""
    id: str
    event: Event
    number: int


class Trace:
    """The last ``size`` events of all requests. Writing is one append; any thread may read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, size: int = 16384) -> None:
        self._clock = clock
        self._ring: deque[tuple[float, str, Event, int]] = deque(maxlen=size)

    def __call__(self, id: str, event: Event, number: int) -> None:
        self._ring.append((self._clock(), id, event, number))

    def of(self, id: str) -> list[TraceEvent]:
        """Events of one request, oldest first; those that fell out of the ring are missing."""
        return [TraceEvent(*entry) for entry in self._ring.copy() if entry[1] == id]

    def recent(self, count: int = 100) -> list[TraceEvent]:
        """The last ``count`` events of anybody, oldest first."""
        return [TraceEvent(*entry) for entry in list(self._ring.copy())[-count:]]
