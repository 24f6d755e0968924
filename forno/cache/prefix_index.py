"""Finds a block by the whole token history it holds, or by the beginning of one.

A full block's hash covers its own tokens, its parent's hash and, at the root, a salt: equal hashes mean equal
tokens from position 0 on and an equal salt. 16 bytes of BLAKE2b make an accidental or deliberate collision, which
would serve one client another's text, infeasible. Token ids are hashed as little-endian uint32, so that another
process (a router) on any machine computes the same.

Where the chain of known hashes ends, some block may still begin as the request goes on: a full one, or one that its
request left unfinished, which has no hash. Blocks with an equal parent and equal first ``least_common`` tokens are
*siblings*, listed together: one look-up leads to all that are worth comparing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import islice
from struct import pack
from typing import TypeAlias

DIGEST_BYTES = 16
MAX_COMPARED = 16
"""Siblings that a look-up compares, the latest indexed first."""

_Beginning: TypeAlias = tuple[bytes, tuple[int, ...]]
"""What siblings share: the parent's hash and the first tokens."""


def root_hash(salt: str, group: str = "") -> bytes:
    """The parent of a request's first block. Requests share blocks only if ``salt`` and ``group`` are both equal."""
    return blake2b(f"{len(salt)}:{salt}{group}".encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a full block that follows ``parent``."""
    return blake2b(parent + pack(f"<{len(tokens)}I", *tokens), digest_size=DIGEST_BYTES).digest()


class PrefixIndex:
    """A one-to-one map between hashes and the full blocks that hold them, and the siblings of each block, full or not.

    ``least_common``: the fewest tokens for which ``find_beginning`` calls a block found. Every operation is O(1).
    """

    __slots__ = ("_beginnings", "_blocks", "_hashes", "_siblings", "least_common")

    def __init__(self, least_common: int) -> None:
        assert least_common > 0, "blocks that have nothing in common are no siblings"
        self.least_common = least_common
        self._blocks: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}
        """Of full blocks only."""
        self._beginnings: dict[int, _Beginning] = {}
        self._siblings: dict[_Beginning, OrderedDict[int, tuple[int, ...]]] = {}
        """Blocks and their tokens, in the order indexed. Never an empty entry."""

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, digest: bytes) -> int | None:
        return self._blocks.get(digest)

    def find_beginning(self, parent: bytes, tokens: Sequence[int]) -> tuple[int | None, int]:
        """Of the blocks that follow ``parent``, the one that begins most like ``tokens``, and how many agree.

        (None, 0) if fewer than ``least_common`` do.
        """
        wanted = tuple(tokens)
        siblings = self._siblings.get((parent, wanted[: self.least_common]))
        if siblings is None:
            return None, 0
        best, most = None, 0
        for block in islice(reversed(siblings), MAX_COMPARED):
            held = siblings[block]
            if held[: most + 1] == wanted[: most + 1]:  # otherwise it cannot agree in more than the best so far
                best, most = block, _common(held, wanted)
                if most == len(wanted):
                    break
        return best, most

    def holds(self, block: int) -> bool:
        """Whether ``block`` can be found, whole or by its beginning."""
        return block in self._beginnings

    def insert(self, digest: bytes, block: int, parent: bytes, tokens: Sequence[int]) -> None:
        """Make a full, computed block findable. If an equal one is indexed already, that one stays."""
        if digest not in self._blocks:
            self._blocks[digest] = block
            self._hashes[block] = digest
            self._list(block, parent, tuple(tokens))

    def insert_unfinished(self, block: int, parent: bytes, tokens: Sequence[int]) -> None:
        """Make a block findable by its beginning, ``tokens``, unless another is found by all of them already."""
        if len(tokens) >= self.least_common and self.find_beginning(parent, tokens)[1] < len(tokens):
            self._list(block, parent, tuple(tokens))

    def forget(self, block: int) -> None:
        """``block`` is about to hold something else."""
        digest = self._hashes.pop(block, None)
        if digest is not None:
            del self._blocks[digest]
        beginning = self._beginnings.pop(block)
        siblings = self._siblings[beginning]
        del siblings[block]
        if not siblings:
            del self._siblings[beginning]

    def _list(self, block: int, parent: bytes, tokens: tuple[int, ...]) -> None:
        beginning = (parent, tokens[: self.least_common])
        self._beginnings[block] = beginning
        self._siblings.setdefault(beginning, OrderedDict())[block] = tokens

    def check_integrity(self) -> None:
        """All directions agree, and a block's hash is that of its tokens; raises AssertionError."""
        assert len(self._blocks) == len(self._hashes)
        for digest, block in self._blocks.items():
            assert self._hashes.get(block) == digest, f"block {block} is indexed under another hash"
        listed = 0
        for beginning, siblings in self._siblings.items():
            assert siblings, "a list of siblings is empty"
            listed += len(siblings)
            for block, tokens in siblings.items():
                assert self._beginnings.get(block) == beginning, f"block {block} is listed with strangers"
                assert tokens[: self.least_common] == beginning[1], f"block {block} begins differently"
                is_whole = self._hashes.get(block) == block_hash(beginning[0], tokens)
                assert is_whole or block not in self._hashes, f"block {block} holds other tokens"
        assert listed == len(self._beginnings), "a block is listed twice or not at all"
        assert self._hashes.keys() <= self._beginnings.keys(), "a full block is not listed"


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many leading tokens agree."""
    for count, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return count
    return min(len(one), len(other))
