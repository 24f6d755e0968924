"""Why a prompt was found in the prefix cache as far as it was, and no further. Hashes and counts only.

What is looked at is what the index and two bounded memories hold: a reason is the best that is known now, not a record
of all time. Within one salt, nothing here says more than the hit itself does. Only ``Miss.SALT`` crosses salts: whoever
reads it for a prompt of their own learns that somebody else's prompt begins alike. It is therefore told only where the
operator asks for it (``--explain-salts``); otherwise such a look-up counts as never seen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Miss(StrEnum):
    """Why a prompt's look-up in the prefix cache ended where it did."""

    NONE = "none"
    """Everything that can be found was found: the last token is always computed."""
    NEVER_SEEN = "never_seen"
    """New text: nothing known begins like the prompt, or all that is known ends where the look-up did."""
    EVICTED = "evicted"
    """The next block was computed once, and overwritten since."""
    SALT = "salt"
    """The next block is cached for another ``cache_salt`` only. Told with ``--explain-salts``."""
    SHORT = "short"
    """Too short to be found: the whole prompt is less than a block, and nothing known begins like it, or what is left
    is known, but fewer tokens than a copy is worth."""
    DIVERGED = "diverged"
    """Others began alike, and went on differently from token ``Lookup.position`` on."""
    DISABLED = "disabled"
    """Prefix caching is off, or the request needs every prompt position's logits."""


@dataclass(slots=True)
class Lookup:
    """One look-up in the prefix cache."""

    matched: int
    """Leading prompt tokens found."""
    reason: Miss
    position: int = 0
    """The first token that differs from all that is known, or that nothing is known of; at least ``matched``: the
    last few tokens before it may have been too few to be worth a copy, or evicted together with it."""


class MissCounts:
    """Look-ups by reason, and the prompt tokens that each left to compute. Written by one thread, read by any."""

    __slots__ = ("lookups", "tokens")

    def __init__(self) -> None:
        self.lookups = dict.fromkeys(Miss, 0)
        self.tokens = dict.fromkeys(Miss, 0)

    def add(self, lookup: Lookup, num_prompt: int) -> None:
        self.lookups[lookup.reason] += 1
        self.tokens[lookup.reason] += num_prompt - lookup.matched


class Evicted:
    """The hashes of the blocks overwritten last, ``size`` of them at most: some 175 bytes each."""

    __slots__ = ("_hashes", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._hashes: OrderedDict[bytes, None] = OrderedDict()
        """In the order of eviction."""

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._hashes

    def __len__(self) -> int:
        return len(self._hashes)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._hashes)

    def add(self, digest: bytes) -> None:
        self._hashes[digest] = None
        if len(self._hashes) > self.size:
            self._hashes.popitem(last=False)

    def discard(self, digest: bytes) -> None:
        """The block is cached again."""
        self._hashes.pop(digest, None)


class Contents:
    """What cached blocks of salted requests hold, whatever their salt: one hash per such block that is cached now."""

    __slots__ = ("_blocks", "_counts")

    def __init__(self) -> None:
        self._blocks: dict[int, bytes] = {}
        self._counts: dict[bytes, int] = {}

    def __contains__(self, content: bytes) -> bool:
        return content in self._counts

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[int]:
        """The blocks."""
        return iter(self._blocks)

    def add(self, block: int, content: bytes) -> None:
        self._blocks[block] = content
        self._counts[content] = self._counts.get(content, 0) + 1

    def discard(self, block: int) -> None:
        content = self._blocks.pop(block, None)
        if content is None:
            return
        self._counts[content] -= 1
        if not self._counts[content]:
            del self._counts[content]
