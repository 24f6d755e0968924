"""Real English to cut prompts from: two books in the public domain (README.md), read when the first prompt is made.

It knows words, not tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib import resources

FILES = ("opticks.txt", "pride.txt")


@dataclass(frozen=True, slots=True)
class Corpus:
    """The words of the text, in order, closed to a ring: any word may begin a span, and each is as likely as any other."""

    words: tuple[str, ...]

    @classmethod
    def load(cls) -> Corpus:
        """The texts that ship with the package: about 93 000 words, 10 ms."""
        folder = resources.files(__name__)
        return cls(tuple(word for name in FILES for word in (folder / name).read_text("utf-8").split()))

    def span(self, start: int, count: int) -> str:
        """``count`` consecutive words from word ``start`` on."""
        size = len(self.words)
        start %= size
        turns, end = divmod(start + count, size)
        if not turns:
            return " ".join(self.words[start:end])
        return " ".join((*self.words[start:], *self.words * (turns - 1), *self.words[:end]))

    def draw(self, rng: random.Random, count: int) -> str:
        """``count`` consecutive words from a random place."""
        return self.span(rng.randrange(len(self.words)), count)
