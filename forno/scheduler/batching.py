"""When waiting requests may join: continuously, or in batches as older servers do it. Same engine, honest comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from forno.config import SchedulerConfig
from forno.observe.record import Shortage
from forno.scheduler.waiting import WaitingLine


class Batching(Protocol):
    """Says how many waiting requests may join. Knows counts and times; touches no request."""

    no_seat: Shortage
    """What a request waits for while there is no seat."""

    def seats(self, now: float, running: int, waiting: WaitingLine) -> int:
        """Requests that may join in this step. ``now`` is in seconds on the scheduler's clock."""

    def joined(self, change: int) -> None:
        """``change`` requests took a seat; -1 if one was preempted and will want it back."""

    def ready_in(self, now: float, waiting: WaitingLine) -> float:
        """Seconds until somebody may join, if nothing runs and nobody else arrives."""


class Continuous:
    """A seat is free as soon as a request finishes."""

    no_seat = Shortage.SEATS

    def __init__(self, config: SchedulerConfig) -> None:
        self._size = config.max_num_seqs

    def seats(self, now: float, running: int, waiting: WaitingLine) -> int:
        return self._size - running

    def joined(self, change: int) -> None:
        pass

    def ready_in(self, now: float, waiting: WaitingLine) -> float:
        return 0.0


class Static:
    """Whoever waits when nothing runs forms a batch; it runs until its last request has finished."""

    no_seat = Shortage.BATCH

    def __init__(self, config: SchedulerConfig) -> None:
        self._size = config.max_num_seqs
        self._open = 0
        """Seats of the current batch not taken yet: its prompts may need several steps to get in."""

    def seats(self, now: float, running: int, waiting: WaitingLine) -> int:
        if running == 0:
            self._open = min(self._size, len(waiting))
        return self._open

    def joined(self, change: int) -> None:
        self._open -= change

    def ready_in(self, now: float, waiting: WaitingLine) -> float:
        return 0.0


class Dynamic(Static):
    """Static, but a batch starts only when it is full or its first request has waited for ``batch_max_delay`` seconds."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._max_delay = config.batch_max_delay

    def seats(self, now: float, running: int, waiting: WaitingLine) -> int:
        if running == 0 and self.ready_in(now, waiting) > 0:
            return 0
        return super().seats(now, running, waiting)

    def ready_in(self, now: float, waiting: WaitingLine) -> float:
        if not len(waiting) or len(waiting) >= self._size:
            return 0.0
        return max(0.0, min(s.request.arrival for s in waiting) + self._max_delay - now)


BATCHINGS: dict[str, Callable[[SchedulerConfig], Batching]] = {
    "continuous": Continuous,
    "static": Static,
    "dynamic": Dynamic,
}
"""By the value of ``SchedulerConfig.batching``."""
