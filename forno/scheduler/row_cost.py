"""What one more row adds to a small step, learned from the steps themselves. Knows counts and seconds."""

from __future__ import annotations

FIRST_RATIO = 0.08
"""Cost of a row as a share of a step of one row, until steps have shown it: a step that waits for the weights' bytes."""
LEARNING_RATE = 0.3


class RowCost:
    """Seconds of a step as a line over its rows, by normalized least mean squares of their logarithms.

    Steps of one row teach the line's beginning, steps of many its slope too; a machine that got slower changes both alike.
    """

    __slots__ = ("_first", "_more")

    def __init__(self) -> None:
        self._first = 0.0
        """Seconds of a step of one row; 0 before the first step."""
        self._more = 0.0
        """Seconds that each further row adds."""

    def observe(self, rows: int, seconds: float) -> None:
        """A step of ``rows`` took ``seconds``."""
        if seconds <= 0:
            return
        if not self._first:
            self._first = seconds / (1.0 + FIRST_RATIO * (rows - 1))
            self._more = FIRST_RATIO * self._first
        expected = self._first + self._more * (rows - 1)
        error = min(seconds / expected - 1.0, 0.5)  # a step that waited for a core says nothing about rows
        share = self._first / expected
        gain = LEARNING_RATE * error / (share**2 + (1.0 - share) ** 2)
        self._first *= 1.0 + gain * share
        self._more *= 1.0 + gain * (1.0 - share)

    def ratio(self, rows: int) -> float:
        """What one more row costs, as a share of a step of ``rows``."""
        if not self._first:
            return FIRST_RATIO / (1.0 + FIRST_RATIO * (rows - 1))
        return self._more / (self._first + self._more * (rows - 1))
