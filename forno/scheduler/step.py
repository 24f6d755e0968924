"""A step in the making, and the totals of all steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

from forno.observe.record import Shortage
from forno.scheduler.sequence import Sequence

Rank: TypeAlias = tuple[float, ...]
"""``Sequence.rank``, or one that compares with it."""
END_OF_LINE: Rank = (math.inf,)


@dataclass(slots=True)
class Counters:
    """Totals since the start. A request counts when it is first scheduled."""

    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, those found in the prefix cache."""
    queue_seconds: float = 0.0
    """Time between arrival and first being scheduled."""
    drafts: int = 0
    """Rows that verified guesses."""
    draft_tokens: int = 0
    accepted_tokens: list[int] = field(default_factory=list)
    """Of the draft tokens, those that were right, by their position among the drafts of their row."""


class Step:
    """Who computes how many tokens, as far as decided."""

    __slots__ = ("barrier", "budget", "copies", "drafts", "seats", "shortage", "tokens")

    def __init__(self, budget: int, seats: int) -> None:
        self.budget = budget
        """Tokens that may still be added."""
        self.seats = seats
        """Sequences that may still join."""
        self.tokens: dict[Sequence, int] = {}
        self.copies: list[tuple[int, int]] = []
        """(source, destination) blocks, in the order in which the cache asked for them. None is in vain: whoever joins
        in a step keeps its blocks in that step, since all who come after it rank worse."""
        self.drafts: dict[Sequence, tuple[int, ...]] = {}
        """Guesses to verify besides ``tokens``, where there are any."""
        self.barrier: Rank = END_OF_LINE
        """Nobody of this rank or worse may join: blocks ran out for somebody who comes first."""
        self.shortage: Shortage | None = None
        """What the first newcomer lacked who was looked at and could not join."""

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        self.tokens[sequence] = num_tokens
        self.budget -= num_tokens

    def drop(self, sequence: Sequence) -> None:
        """``sequence`` lost its blocks, and with them its part in this step."""
        self.budget += self.tokens.pop(sequence, 0)
        self.starve(sequence)

    def lacking(self, first: Sequence | None, no_seat: Shortage) -> Shortage:
        """What kept the ``first`` in line from joining; None: all are parked. ``no_seat``: what the lack of one means."""
        if self.shortage is not None:
            return self.shortage
        if first is None:
            return Shortage.PREFIX
        if self.seats <= 0:
            return no_seat
        if self.budget <= 0:
            return Shortage.TOKENS
        return Shortage.BLOCKS if self.barrier < END_OF_LINE else Shortage.PREFIX  # all were parked, until the step was over

    def starve(self, sequence: Sequence) -> None:
        """``sequence`` did not get the blocks it needs."""
        self.barrier = min(self.barrier, sequence.rank)
