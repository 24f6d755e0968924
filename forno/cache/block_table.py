"""One request's view of the cache: its blocks in order, and the hash of each block of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from forno.cache.prefix_index import block_hash, root_hash

UNSALTED = root_hash("")


class BlockTable:
    """Blocks of one request. Only ``KvCache`` changes ``blocks``."""

    __slots__ = ("blocks", "contents", "followed", "found", "hashes", "ids", "indexed", "reserve", "root")

    def __init__(self, root: bytes, salted: bool = False, reserve: int = 0) -> None:
        self.root = root
        self.reserve = reserve
        """Tokens that the first blocks taken make room for at least, however few are needed yet."""
        self.blocks: list[int] = []
        self.ids: tuple[int, ...] = ()
        """``blocks`` as the plan wants them; rebuilt only when a block is added."""
        self.hashes: list[bytes] = []
        """Of the first full blocks of the request's tokens, computed once, whether or not the blocks exist yet."""
        self.indexed = 0
        """Leading blocks whose content is computed and was offered to the prefix index."""
        self.contents: list[bytes] | None = [] if salted else None
        """Of a salted request: the hashes that its first blocks would have without the salt, as far as they were needed."""
        self.followed = 0
        """Leading hashes that the ghost cache counts as held."""
        self.found: list[int | None] = []
        """What the ghost cache knew of the first blocks when they were adopted."""

    def parent(self, i: int) -> bytes:
        """The hash that block ``i`` follows."""
        return self.hashes[i - 1] if i else self.root

    def extend_hashes(self, tokens: Sequence[int], block_size: int, count: int) -> None:
        """Make ``hashes`` cover the first ``count`` blocks of ``tokens``."""
        for i in range(len(self.hashes), count):
            self.hashes.append(block_hash(self.parent(i), tokens[i * block_size : (i + 1) * block_size]))

    def content(self, i: int, tokens: Sequence[int], block_size: int) -> bytes:
        """The hash that block ``i`` has without a salt."""
        if self.contents is None:
            return self.hashes[i]
        for j in range(len(self.contents), i + 1):
            parent = self.contents[-1] if j else UNSALTED
            self.contents.append(block_hash(parent, tokens[j * block_size : (j + 1) * block_size]))
        return self.contents[i]
