"""Contiguous reservation: what servers did before paging, for comparison with it.

At admission a request gets one run of neighbouring blocks, for the longest that it may become, and keeps it to its end. What
it does not come to use is wasted (internal fragmentation), and a run must be found in one piece (external fragmentation):
the two that PagedAttention ends (Kwon et al., arXiv 2309.06180, section 3.1).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from forno.cache.block_pool import BlockPool
from forno.cache.block_table import BlockTable
from forno.cache.kv_cache import KvCache, Match


class RunPool(BlockPool):
    """Hands out runs of neighbouring blocks: the first that is long enough. Keeps nothing."""

    __slots__ = ("_runs",)

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks, evicted=lambda block: None)
        self._empty.clear()
        self._runs: list[tuple[int, int]] = [(0, num_blocks)]
        """First block and end of each free run; never two that touch."""

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, in whatever pieces."""
        return sum(end - start for start, end in self._runs)

    def has_room(self, count: int, matched: Sequence[int] = (), bespoken: int = 0) -> bool:
        """Whether a run is long enough. Nothing is ever ``matched``, and who runs has all it will need."""
        return any(end - start >= count for start, end in self._runs)

    def take_all(self, count: int) -> list[int] | None:
        for i, (start, end) in enumerate(self._runs):
            if end - start >= count:
                self._runs[i : i + 1] = [(start + count, end)] if start + count < end else []
                self.references[start : start + count] = [1] * count
                return list(range(start, start + count))
        return None

    def take(self) -> int:
        raise AssertionError("blocks are taken by the run")

    def release(self, block: int, keep: bool) -> None:
        assert self.references[block] == 1, "a run has one owner"
        assert not keep
        self.references[block] = 0
        at = bisect_left(self._runs, (block, block))
        start = end = at
        first, last = block, block + 1
        if at and self._runs[at - 1][1] == block:
            start, first = at - 1, self._runs[at - 1][0]
        if at < len(self._runs) and self._runs[at][0] == last:
            end, last = at + 1, self._runs[at][1]
        self._runs[start:end] = [(first, last)]

    def check_integrity(self) -> None:
        """The free runs are exactly the blocks without references, in as few pieces as can be; raises AssertionError."""
        free = [block for start, end in self._runs for block in range(start, end)]
        assert free == [block for block, count in enumerate(self.references) if not count], "a block is lost"
        assert all(end < start for (_, end), (start, _) in zip(self._runs, self._runs[1:], strict=False)), "two runs touch"


class ContiguousCache(KvCache):
    """A ``KvCache`` whose tables are one run each. Nothing is shared, found again or kept.

    ``longest``: tokens that each request reserves; with ``as_asked``, no more than its prompt and ``max_tokens`` need.
    """

    def __init__(self, num_blocks: int, block_size: int, longest: int, as_asked: bool = False) -> None:
        super().__init__(num_blocks, block_size, enable_prefix_caching=False)
        self.pool = RunPool(num_blocks)
        self.longest = min(longest, self.capacity)
        self.as_asked = as_asked

    def open(self, salt: str = "", group: str = "", longest: int = 0) -> BlockTable:
        table = super().open(salt)
        table.reserve = min(longest, self.longest) if self.as_asked else self.longest
        return table

    def match(self, table: BlockTable, tokens: Sequence[int]) -> Match:
        return Match()

    def index_computed(self, table: BlockTable, tokens: Sequence[int], computed: int) -> list[bytes]:
        full = computed // self.block_size
        table.extend_hashes(tokens, self.block_size, full)
        filled = table.hashes[table.indexed : full]
        table.indexed = max(full, table.indexed)
        return filled

    def close(self, table: BlockTable, tokens: Sequence[int] = (), computed: int = 0) -> None:
        super().close(table)

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Also: each table is one run, as long as was reserved; raises AssertionError."""
        tables = list(tables)
        super().check_integrity(tables)
        for table in tables:
            blocks = table.blocks
            assert blocks == list(range(blocks[0], blocks[0] + self.blocks_for(table.reserve))), "a table is no run"
        assert not len(self.index), "a block can be found"
