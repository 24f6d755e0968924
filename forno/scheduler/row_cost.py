"""What one more row adds to a small step, learned from the steps themselves. Knows counts and seconds."""

from __future__ import annotations

FIRST_RATIO = 0.08
"""Cost of a row as a share of a step of one row, until steps have shown it: a step that waits for the weights' bytes."""
LEARNING_RATE = 0.1


class RowCost:
    """Seconds of a step as a line over its rows, by normalized least mean squares: steps of one row teach the line's
    beginning, steps of many its slope."""

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
        error = min(seconds - expected, expected / 2)  # a step that waited for a core says nothing about rows
        gain = LEARNING_RATE * error / (1 + (rows - 1) ** 2)
        self._first = max(self._first + gain, 1e-9)
        self._more = max(self._more + gain * (rows - 1), 0.0)

    def ratio(self, rows: int) -> float:
        """What one more row costs, as a share of a step of ``rows``."""
        if not self._first:
            return FIRST_RATIO / (1.0 + FIRST_RATIO * (rows - 1))
        return self._more / (self._first + self._more * (rows - 1))
