"""Finds a block by the whole token history it holds.

A full block's hash covers its own tokens, its parent's hash and, at the root, a salt: equal hashes mean equal
tokens from position 0 on and an equal salt. 16 bytes of BLAKE2b make an accidental or deliberate collision, which
would serve one client another's text, infeasible. Token ids are hashed as little-endian uint32, so that another
process (a router) on any machine computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import pack

DIGEST_BYTES = 16


def root_hash(salt: str, group: str = "") -> bytes:
    """The parent of a request's first block. Requests share blocks only if ``salt`` and ``group`` are both equal."""
    return blake2b(f"{len(salt)}:{salt}{group}".encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a full block that follows ``parent``."""
    return blake2b(parent + pack(f"<{len(tokens)}I", *tokens), digest_size=DIGEST_BYTES).digest()


class PrefixIndex:
    """A one-to-one map between block hashes and the blocks that hold them."""

    __slots__ = ("_blocks", "_hashes")

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, digest: bytes) -> int | None:
        return self._blocks.get(digest)

    def holds(self, block: int) -> bool:
        """Whether ``block`` can be found by some hash."""
        return block in self._hashes

    def insert(self, digest: bytes, block: int) -> None:
        """Make a computed block findable. If an equal one is indexed already, that one stays."""
        if digest not in self._blocks:
            self._blocks[digest] = block
            self._hashes[block] = digest

    def forget(self, block: int) -> None:
        """``block`` is about to hold something else."""
        del self._blocks[self._hashes.pop(block)]

    def check_integrity(self) -> None:
        """Both directions agree; raises AssertionError."""
        assert len(self._blocks) == len(self._hashes)
        for digest, block in self._blocks.items():
            assert self._hashes.get(block) == digest, f"block {block} is indexed under another hash"
