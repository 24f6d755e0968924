"""Finds a block by the whole token history it holds, or by the beginning of one.

A full block's hash covers its own tokens, its parent's hash and, at the root, a salt: equal hashes mean equal
tokens from position 0 on and an equal salt. 16 bytes of BLAKE2b make an accidental or deliberate collision, which
would serve one client another's text, infeasible. Token ids are hashed as little-endian uint32, so that another
process (a router) on any machine computes the same.

Where the chain of known hashes ends, some block may still begin as the request goes on: a full one, or one that its
request left unfinished, which has no hash. Blocks with an equal parent are *siblings*, kept in the order of their
tokens: whichever agrees longest with a request stands next to the place where the request's own tokens would stand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from struct import pack
from typing import NamedTuple, TypeAlias

DIGEST_BYTES = 16

_Sibling: TypeAlias = tuple[tuple[int, ...], int]
"""A block's tokens, and the block."""


def root_hash(salt: str, group: str = "") -> bytes:
    """The parent of a request's first block. Requests share blocks only if ``salt`` and ``group`` are both equal."""
    return blake2b(f"{len(salt)}:{salt}{group}".encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a full block that follows ``parent``."""
    return blake2b(parent + pack(f"<{len(tokens)}I", *tokens), digest_size=DIGEST_BYTES).digest()


class Beginning(NamedTuple):
    """The block that begins most like what was asked for."""

    block: int | None = None
    """None if no block agrees in even one token."""
    common: int = 0
    """Leading tokens that agree."""
    forks: bool = False
    """Whether some block goes on differently after ``common`` tokens; otherwise all that is known ends there."""


class PrefixIndex:
    """A one-to-one map between hashes and the full blocks that hold them, and the siblings of each block, full or not.

    ``least_common``: the fewest tokens for which an unfinished block is worth finding. A look-up by hash is O(1), one
    by beginning O(log n) in the number of siblings; adding and removing a sibling moves some pointers.
    """

    __slots__ = ("_blocks", "_hashes", "_places", "_siblings", "least_common")

    def __init__(self, least_common: int) -> None:
        assert least_common > 0, "blocks that have nothing in common are no siblings"
        self.least_common = least_common
        self._blocks: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}
        """Of full blocks only."""
        self._places: dict[int, tuple[bytes, tuple[int, ...]]] = {}
        """Each block's parent and tokens."""
        self._siblings: dict[bytes, list[_Sibling]] = {}
        """By their parent, sorted. Never an empty list."""

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, digest: bytes) -> int | None:
        return self._blocks.get(digest)

    def hash_of(self, block: int) -> bytes | None:
        """The hash of a full block; None if it is not full, or cannot be found."""
        return self._hashes.get(block)

    def find_beginning(self, parent: bytes, tokens: Sequence[int]) -> Beginning:
        """Of the blocks that follow ``parent``, the one that begins most like ``tokens``."""
        siblings = self._siblings.get(parent)
        if siblings is None:
            return Beginning()
        wanted = tuple(tokens)
        best, most, forks = None, 0, False
        at = bisect_left(siblings, (wanted,))
        for held, block in siblings[max(at - 1, 0) : at + 1]:
            common = _common(held, wanted)
            differs = common < min(len(held), len(wanted))
            if common > most:
                best, most, forks = block, common, differs
            elif common == most:
                forks |= differs
        return Beginning(best, most, forks)

    def holds(self, block: int) -> bool:
        """Whether ``block`` can be found, whole or by its beginning."""
        return block in self._places

    def insert(self, digest: bytes, block: int, parent: bytes, tokens: Sequence[int]) -> bool:
        """Make a full, computed block findable. False if an equal one is indexed already: that one stays."""
        if digest in self._blocks:
            return False
        self._blocks[digest] = block
        self._hashes[block] = digest
        self._list(block, parent, tuple(tokens))
        return True

    def insert_unfinished(self, block: int, parent: bytes, tokens: Sequence[int]) -> bool:
        """Make a block findable by its beginning, ``tokens``, unless another is found by all of them already."""
        if len(tokens) < self.least_common or self.find_beginning(parent, tokens).common == len(tokens):
            return False
        self._list(block, parent, tuple(tokens))
        return True

    def forget(self, block: int) -> bytes | None:
        """``block`` is about to hold something else. Returns its hash, if it was full."""
        parent, tokens = self._places.pop(block)
        siblings = self._siblings[parent]
        if len(siblings) == 1:
            del self._siblings[parent]
        else:
            del siblings[bisect_left(siblings, (tokens, block))]
        digest = self._hashes.pop(block, None)
        if digest is not None:
            del self._blocks[digest]
        return digest

    def _list(self, block: int, parent: bytes, tokens: tuple[int, ...]) -> None:
        self._places[block] = parent, tokens
        siblings = self._siblings.setdefault(parent, [])
        siblings.insert(bisect_left(siblings, (tokens, block)), (tokens, block))

    def check_integrity(self) -> None:
        """All directions agree, and a block's hash is that of its tokens; raises AssertionError."""
        assert len(self._blocks) == len(self._hashes)
        for digest, block in self._blocks.items():
            assert self._hashes.get(block) == digest, f"block {block} is indexed under another hash"
        listed = 0
        for parent, siblings in self._siblings.items():
            assert siblings, "a list of siblings is empty"
            assert siblings == sorted(siblings), "siblings are out of order"
            listed += len(siblings)
            for tokens, block in siblings:
                assert self._places.get(block) == (parent, tokens), f"block {block} is listed with strangers"
                is_whole = self._hashes.get(block) == block_hash(parent, tokens)
                assert is_whole or block not in self._hashes, f"block {block} holds other tokens"
        assert listed == len(self._places), "a block is listed twice or not at all"
        assert self._hashes.keys() <= self._places.keys(), "a full block is not listed"


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many leading tokens agree."""
    for count, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return count
    return min(len(one), len(other))
