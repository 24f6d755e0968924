"""Lengths by the server's own tokens: how many words of the corpus make so many tokens of a prompt.

A client has no tokenizer, and needs none: over many prompts it is the average that counts, and that is one ratio.
It knows a function that counts, not how (``/tokenize``, or the ``usage`` of a one-token completion).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from forno.bench.corpus import Corpus
from forno.errors import ConfigError

PIECES, WORDS = 48, 96
"""Samples of the corpus, evenly spread, and words of each: their average is within a percent of the whole text's."""


LONGEST_WORD = 1000.0
"""Tokens of a word at most, on average: more is no tokenizer's count, and prompts made by it would be one word long."""


@dataclass(frozen=True, slots=True)
class Ruler:
    """The server's tokens in words."""

    tokens_per_word: float = 1.33
    """Of the corpus."""
    template_tokens: float = 0.0
    """What the chat template puts around a prompt of one message."""

    def words(self, tokens: float) -> int:
        """Words of text alone that make about so many tokens; at least 1."""
        return max(1, round(tokens / self.tokens_per_word))

    def prompt_words(self, tokens: float) -> int:
        """Words of a single message whose whole prompt, template included, has about so many tokens; at least 1."""
        return self.words(tokens - self.template_tokens)

    def tokens(self, words: int) -> float:
        """About how many tokens so many words of text alone have."""
        return words * self.tokens_per_word


async def measure(count: Callable[[str], Awaitable[int]], corpus: Corpus, pieces: int = PIECES, words: int = WORDS) -> Ruler:
    """The ruler of a server.

    ``count(text)`` returns the prompt tokens of a request whose only message is ``text``, template included. It is asked
    ``2 * pieces`` times: for a long and for a short piece at each place, whose difference is text alone. Whatever it raises
    is passed on; counts that cannot be true raise ``ConfigError``.
    """
    starts = [i * len(corpus.words) // pieces for i in range(pieces)]
    short = max(1, words // 8)
    long_tokens = [await count(corpus.span(start, words)) for start in starts]
    short_tokens = [await count(corpus.span(start, short)) for start in starts]
    per_word = (sum(long_tokens) - sum(short_tokens)) / (pieces * (words - short))
    if not 0 < per_word <= LONGEST_WORD:
        raise ConfigError(
            f"the server counts {sum(long_tokens)} tokens in {pieces} texts of {words} words, and {sum(short_tokens)} in as "
            f"many of {short}: its counts of prompt tokens cannot be used"
        )
    return Ruler(per_word, max(0.0, sum(long_tokens) / pieces - per_word * words))
