"""Stop strings in streamed text, whatever the pieces it comes in. It knows nothing of tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """Passes text on until a stop string is complete, holding back what may still become one.

    The match is the one that is complete first; of several that end together, the longest. This rule depends on the
    text alone, not on how it was cut, and never waits once a stop string is there. One automaton over all stop strings
    (Aho and Corasick, 1975) reads each character once.
    """

    __slots__ = ("_depth", "_failure", "_match", "_next", "_pending", "_state", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match: list[str | None] = [None]
        for stop in dict.fromkeys(stops):
            assert stop, "an empty stop string is refused at the edge"
            self._insert(stop)
        self._failure = [0] * len(self._next)
        self._link()
        self._state = 0
        self._pending = ""
        self.matched: str | None = None
        """The stop string that ended the text, once one has."""

    def add(self, text: str) -> tuple[str, str | None]:
        """(text that is certain not to be part of a stop string, the stop string now complete or None).
        After a match nothing more is emitted."""
        if self.matched is not None:
            return "", self.matched
        state, steps, failure = self._state, self._next, self._failure
        whole = self._pending + text
        for position, character in enumerate(text, len(self._pending) + 1):
            while state and character not in steps[state]:
                state = failure[state]
            state = steps[state].get(character, 0)
            if (stop := self._match[state]) is not None:
                self.matched, self._pending = stop, ""
                return whole[: position - len(stop)], stop
        self._state = state
        certain = len(whole) - self._depth[state]
        self._pending = whole[certain:]
        return whole[:certain], None

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        text, self._pending, self._state = self._pending, "", 0
        return text

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = self._next[state][character]
        self._match[state] = stop

    def _link(self) -> None:
        """Breadth first: a state fails to the longest proper suffix that is also a prefix, and inherits its match."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._next[state].items():
                fallback = self._failure[state]
                while fallback and character not in self._next[fallback]:
                    fallback = self._failure[fallback]
                self._failure[child] = self._next[fallback].get(character, 0)
                queue.append(child)
            self._match[state] = self._match[state] or self._match[self._failure[state]]
