"""Which live request expires next."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping

from forno.scheduler.sequence import Sequence

_SLACK = 64


class Deadlines:
    """A heap of (deadline, serial, id). Entries of ended requests are dropped when they surface or pile up."""

    def __init__(self, live: Mapping[str, Sequence]) -> None:
        self._live = live
        self._heap: list[tuple[float, int, str]] = []

    @property
    def next(self) -> float:
        """No live request expires before this time; infinity if none ever does."""
        while self._heap and not self._is_live(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def add(self, sequence: Sequence) -> None:
        deadline = sequence.request.deadline
        if deadline is None:
            return
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (deadline, sequence.rank[2], sequence.request.id))

    def expired(self, now: float) -> list[Sequence]:
        """Live sequences whose deadline has passed; each is named once."""
        found = []
        while self.next <= now:
            found.append(self._live[heapq.heappop(self._heap)[2]])
        return found

    def _is_live(self, entry: tuple[float, int, str]) -> bool:
        sequence = self._live.get(entry[2])
        return sequence is not None and sequence.rank[2] == entry[1]
