"""The paged KV cache as the scheduler sees it: block tables over one pool, and prefixes found again by their hash.

Knows blocks and token ids. Does not know requests, steps, or where a block lies in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from forno.cache.block_pool import BlockPool
from forno.cache.block_table import BlockTable
from forno.cache.prefix_index import PrefixIndex, root_hash


class KvCache:
    """``num_blocks`` blocks of ``block_size`` tokens.

    With ``enable_prefix_caching`` off nothing changes but the root hash, which is then private to each group of
    requests (the children of one ``n`` > 1 request): they share their prompt, and nobody else finds it.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        assert num_blocks > 0, "the cache needs at least one block"
        assert block_size > 0, "a block holds at least one token"
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.index = PrefixIndex()
        self.pool = BlockPool(num_blocks, evicted=self.index.forget)
        self.queried_tokens = 0
        """Prompt tokens looked up, once per request."""
        self.hit_tokens = 0
        """Of those, tokens whose blocks were found."""
        self._groups = 0

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    @property
    def capacity(self) -> int:
        """Tokens that fit when one request has all blocks."""
        return self.num_blocks * self.block_size

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    @property
    def usage(self) -> float:
        """Share of the blocks that running requests hold, 0 to 1."""
        return 1.0 - self.pool.num_free / self.pool.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def open(self, salt: str = "", group: str = "") -> BlockTable:
        """An empty table. ``group`` names requests that share their prompt even when prefix caching is off."""
        if self.enable_prefix_caching:
            return BlockTable(root_hash(salt))
        self._groups += 1
        return BlockTable(root_hash(salt, f"group {group}" if group else f"alone {self._groups}"))

    def match(self, table: BlockTable, tokens: Sequence[int]) -> list[int]:
        """The longest run of known blocks at the start of ``tokens``, never all of it: the last token is computed."""
        limit = (len(tokens) - 1) // self.block_size
        table.extend_hashes(tokens, self.block_size, limit)
        found = []
        for digest in islice(table.hashes, limit):
            block = self.index.find(digest)
            if block is None:
                break
            found.append(block)
        return found

    def fits(self, matched: Sequence[int], num_tokens: int, bespoken: int = 0) -> bool:
        """Whether a new table with ``matched`` blocks could now grow to ``num_tokens`` and leave ``bespoken`` blocks."""
        free = self.pool.num_free - sum(map(self.pool.is_kept, matched)) - bespoken
        return self.blocks_for(num_tokens) - len(matched) <= free

    def adopt(self, table: BlockTable, matched: Sequence[int]) -> None:
        """Start an empty table with blocks that ``match`` found."""
        assert not table.blocks
        for block in matched:
            self.pool.share(block)
        table.blocks.extend(matched)
        table.ids = tuple(matched)
        table.indexed = len(matched)

    def grow(self, table: BlockTable, num_tokens: int) -> bool:
        """Make room for positions ``0 .. num_tokens - 1``; False, and nothing changed, if too few blocks are free."""
        missing = -(-num_tokens // self.block_size) - len(table.blocks)
        if missing <= 0:
            return True
        if missing > self.pool.num_free:
            return False
        table.blocks.extend([self.pool.take() for _ in range(missing)])
        table.ids = tuple(table.blocks)
        return True

    def index_computed(self, table: BlockTable, tokens: Sequence[int], computed: int) -> list[bytes]:
        """Make the blocks findable that ``computed`` tokens fill; returns the hashes of those newly filled."""
        full = computed // self.block_size
        if full <= table.indexed:
            return []
        table.extend_hashes(tokens, self.block_size, full)
        filled = table.hashes[table.indexed : full]
        for digest, block in zip(filled, table.blocks[table.indexed : full], strict=True):
            self.index.insert(digest, block)
        table.indexed = full
        return filled

    def close(self, table: BlockTable) -> None:
        """Give all blocks back, last first, so that a prefix outlives its continuations. The table may start again."""
        for block in reversed(table.blocks):
            self.pool.release(block, keep=self.index.holds(block))
        table.blocks.clear()
        table.ids = ()
        table.indexed = 0

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """``tables`` are all the open tables: they hold exactly the references counted; raises AssertionError."""
        self.pool.check_integrity()
        self.index.check_integrity()
        counts = [0] * self.num_blocks
        for table in tables:
            assert table.ids == tuple(table.blocks), "a table's ids are stale"
            assert len(set(table.blocks)) == len(table.blocks), "a table holds a block twice"
            assert table.indexed <= len(table.blocks)
            for block in table.blocks:
                counts[block] += 1
        assert counts == self.pool.references, "references leaked or lost"
        for block in range(self.num_blocks):
            assert self.index.holds(block) or not self.pool.is_kept(block), f"block {block} is kept but cannot be found"
