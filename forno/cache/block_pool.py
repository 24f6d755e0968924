"""A fixed number of KV blocks with reference counts. Knows neither what a block holds nor who holds it.

A block is in exactly one of three states: *held* (references > 0), *kept* (no references, but its content can
still be found by a later request) or *empty*. Kept blocks are taken for new content least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence


class BlockPool:
    """Hands out block ids ``0 .. num_blocks - 1``. Every operation is O(1).

    ``evicted(block)`` is called when a kept block is about to be taken for new content.
    """

    __slots__ = ("_empty", "_evicted", "_kept", "num_evictions", "references")

    def __init__(self, num_blocks: int, evicted: Callable[[int], None]) -> None:
        self.references = [0] * num_blocks
        self.num_evictions = 0
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._evicted = evicted

    @property
    def num_blocks(self) -> int:
        return len(self.references)

    @property
    def num_free(self) -> int:
        """Blocks that ``take`` can hand out now."""
        return len(self._empty) + len(self._kept)

    def is_kept(self, block: int) -> bool:
        return block in self._kept

    def take(self) -> int:
        """A block for new content, with one reference. The caller has checked ``num_free``."""
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._kept.popitem(last=False)
            self.num_evictions += 1
            self._evicted(block)
        self.references[block] = 1
        return block

    def has_room(self, count: int, matched: Sequence[int] = (), bespoken: int = 0) -> bool:
        """Whether ``take_all(count)`` would work once ``matched`` are shared, and leave ``bespoken`` blocks."""
        return count <= self.num_free - sum(map(self.is_kept, matched)) - bespoken

    def take_all(self, count: int) -> list[int] | None:
        """``count`` blocks; None, and nothing changed, if too few are free."""
        return [self.take() for _ in range(count)] if count <= self.num_free else None

    def share(self, block: int) -> None:
        """One more reference to a held or kept block."""
        if self.references[block] == 0:
            del self._kept[block]
        self.references[block] += 1

    def touch(self, block: int) -> None:
        """``block`` was of use: if it is kept, it is the last to be taken."""
        if block in self._kept:
            self._kept.move_to_end(block)

    def release(self, block: int, keep: bool) -> None:
        """One reference less. The last one leaves the block kept (most recently used) or empty."""
        self.references[block] -= 1
        if self.references[block]:
            return
        if keep:
            self._kept[block] = None
        else:
            self._empty.append(block)

    def check_integrity(self) -> None:
        """Every block is in exactly one state; raises AssertionError."""
        empty = set(self._empty)
        assert len(empty) == len(self._empty), "a block is empty twice"
        assert not empty & self._kept.keys(), "a block is both empty and kept"
        for block, count in enumerate(self.references):
            free = block in empty or block in self._kept
            assert count >= 0, f"block {block} has {count} references"
            assert free == (count == 0), f"block {block} has {count} references and is {'free' if free else 'lost'}"
