"""Blocks that are being computed now, so that nobody computes the same block at the same time.

Without it, 32 clients that arrive together with one long prefix would each compute it: the prefix index learns of a
block only when it is full and computed. With it the first one computes and the others wait; ``n`` > 1 is the same case.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from forno.cache import PrefixIndex
from forno.scheduler.sequence import Sequence


class InFlight:
    """Block hash to the running sequence that will compute the block.

    A sequence waits only for a better-ranked one. The best-ranked live sequence therefore never waits for anybody,
    so somebody always makes progress, and by induction everybody finishes.
    """

    def __init__(self) -> None:
        self._owners: dict[bytes, Sequence] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def awaited(self, sequence: Sequence, missing: Seq[bytes]) -> bytes | None:
        """How far the blocks that ``sequence`` misses next are being computed: the last such hash.

        Waiting for the last rather than the first means being woken once per owner, not once per block.
        """
        last = None
        for digest in missing:
            owner = self._owners.get(digest)
            if owner is None or owner.rank > sequence.rank:
                break
            last = digest
        return last

    def owner(self, digest: bytes) -> Sequence:
        """Who computes the block, which is in flight."""
        return self._owners[digest]

    def claim(self, sequence: Sequence, index: PrefixIndex, num_blocks: int) -> None:
        """``sequence`` starts to run and will fill its first ``num_blocks`` blocks. The best-ranked claim counts."""
        table = sequence.table
        for digest in table.hashes[table.indexed : num_blocks]:
            owner = self._owners.get(digest)
            if index.find(digest) is None and (owner is None or owner.rank > sequence.rank):
                self._owners[digest] = sequence
        sequence.claimed = num_blocks

    def release(self, sequence: Sequence, digests: Seq[bytes]) -> list[bytes]:
        """These blocks are computed, or will not be. Returns the hashes that are no longer in flight."""
        released = [d for d in digests if self._owners.get(d) is sequence]
        for digest in released:
            del self._owners[digest]
        return released

    def release_all(self, sequence: Sequence) -> list[bytes]:
        """``sequence`` stops running."""
        released = self.release(sequence, sequence.table.hashes[sequence.table.indexed : sequence.claimed])
        sequence.claimed = 0
        return released

    def check_integrity(self, running: Seq[Sequence], parked_on: set[bytes]) -> None:
        """Owners run and have not indexed the block yet; whoever is parked waits for something that has an owner."""
        for digest, owner in self._owners.items():
            assert owner in running, "an owner does not run"
            assert digest in owner.table.hashes[owner.table.indexed : owner.claimed], "an owner claims a foreign block"
        assert parked_on <= self._owners.keys(), "a sequence waits for a block that nobody computes"
