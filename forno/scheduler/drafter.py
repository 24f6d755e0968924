"""``Drafter``: guesses how one sequence goes on from what it holds already (prompt lookup decoding: Saxena, 2023).

Where the last few tokens occurred before, what followed them then may follow again: text that is quoted, edited or
summarized, code, lists, loops. Knows token ids only.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_CANDIDATES = 8
"""Earlier occurrences that are compared: bounds the time of a look-up in text that repeats itself a lot."""
LEARNING_RATE = 0.2
"""Weight of the newest token in the running estimate of how often a guess is right."""


class NgramIndex:
    """Finds where the end of a growing list of tokens occurred before. O(1) per token in time and memory.

    An occurrence has at least ``shortest`` tokens in common; the one with most (up to ``longest``) is taken, the latest
    among equals.
    """

    __slots__ = ("_before", "_last", "longest", "shortest")

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest, self.longest = shortest, longest
        self._last: dict[tuple[int, ...], int] = {}
        """The last ``shortest`` tokens to the position where they end, the latest one."""
        self._before: list[int] = []
        """Position to the one before it where the same ``shortest`` tokens end, or -1."""

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Position where the longest earlier occurrence of the end of ``tokens`` ends, and its length; (-1, 0) if none.

        ``tokens`` must begin with those of the last call.
        """
        self._extend(tokens)
        end = len(tokens) - 1
        position, best, most = self._before[end], -1, 0
        for _ in range(MOST_CANDIDATES):
            if position < 0 or most == self.longest:
                break
            length = self._common(tokens, position, end)
            if length > most:
                best, most = position, length
            position = self._before[position]
        return best, most

    def _extend(self, tokens: Sequence[int]) -> None:
        for end in range(len(self._before), len(tokens)):
            start = end + 1 - self.shortest
            if start < 0:
                self._before.append(-1)
                continue
            ngram = tuple(tokens[start : end + 1])
            self._before.append(self._last.get(ngram, -1))
            self._last[ngram] = end

    def _common(self, tokens: Sequence[int], position: int, end: int) -> int:
        """Tokens in common that end at ``position`` and at ``end``; ``shortest`` of them are known to be."""
        length = self.shortest
        while length < self.longest and length <= position and tokens[position - length] == tokens[end - length]:
            length += 1
        return length


class Drafter:
    """One sequence's n-grams, and how often guesses from them were right, by the length of the match.

    ``odds[n]`` is the estimated chance that a token after a match of ``n`` tokens is right, given that those before it
    are; it starts from what the other sequences taught.
    """

    __slots__ = ("_index", "accepted", "drafted", "length", "odds", "skipped")

    def __init__(self, shortest: int, longest: int, odds: Sequence[float]) -> None:
        self._index = NgramIndex(shortest, longest)
        self.odds = list(odds)
        self.length = 0
        """Of the last match."""
        self.skipped = 0
        """Matches in a row of which nothing was drafted."""
        self.drafted = self.accepted = 0
        """Draft tokens since the start, and those that were right."""

    def guess(self, tokens: Sequence[int], most: int) -> list[int]:
        """Up to ``most`` tokens that may follow; a sequence that goes in circles is guessed to go on so."""
        position, self.length = self._index.find(tokens)
        if position < 0:
            return []
        period = len(tokens) - 1 - position
        return [tokens[position + 1 + i % period] for i in range(most)]

    @property
    def chance(self) -> float:
        """That the next token after the last match is guessed right."""
        return self.odds[self.length]

    def learn(self, drafted: int, accepted: int) -> None:
        """Of ``drafted`` tokens after the last match the first ``accepted`` were right."""
        self.drafted += drafted
        self.accepted += accepted
        self.odds[self.length] = updated(self.chance, drafted, accepted, LEARNING_RATE)


def updated(odds: float, drafted: int, accepted: int, rate: float) -> float:
    """The running estimate after ``accepted`` hits and, if there were more drafts, one miss."""
    odds = 1.0 - (1.0 - odds) * (1.0 - rate) ** accepted
    return odds * (1.0 - rate) if accepted < drafted else odds
