"""The paged KV cache as the scheduler sees it: block tables over one pool, and prefixes found again by their hash.

A prefix is found by whole blocks, which are shared, and beyond them by the beginning of one more, which is copied: the
request continues in its own copy, so nobody ever writes into a block that somebody else may read.

Knows blocks and token ids. Does not know requests, steps, or where a block lies in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from math import ceil
from typing import NamedTuple

from forno.cache.block_pool import BlockPool
from forno.cache.block_table import BlockTable
from forno.cache.ghost import GhostCache
from forno.cache.misses import Contents, Evicted, Lookup, Miss, MissCounts
from forno.cache.prefix_index import Beginning, PrefixIndex, root_hash
from forno.cache.use import Holder, KvUse, UseTotals, kv_use

LEAST_COPIED = 1 / 8
"""A copy moves a whole block: it must spare computing at least this share of one."""
LEAST_EVICTED, MOST_EVICTED = 1 << 10, 1 << 16
"""Hashes of evicted blocks remembered: four times the cache's blocks, within these bounds (the latter some 11 MB)."""


class Match(NamedTuple):
    """What the cache holds of a request's tokens."""

    blocks: Sequence[int] = ()
    """To be shared: the longest run of known full blocks."""
    num_tokens: int = 0
    """All that is known, copied tokens included."""
    source: int | None = None
    """To be copied: the block whose beginning goes on where ``blocks`` end."""
    beginning: Beginning = Beginning()
    """Whatever begins most like what follows ``blocks``, too short to be copied or not."""


class KvCache:
    """``num_blocks`` blocks of ``block_size`` tokens.

    With ``enable_prefix_caching`` off nothing changes but the root hash, which is then private to each group of
    requests (the children of one ``n`` > 1 request): they share their prompt, and nobody else finds it.

    ``explain_salts``: whether ``explain`` tells that a prompt is cached for another salt.
    """

    def __init__(
        self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True, explain_salts: bool = False
    ) -> None:
        assert num_blocks > 0, "the cache needs at least one block"
        assert block_size > 0, "a block holds at least one token"
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.index = PrefixIndex(least_common=ceil(block_size * LEAST_COPIED))
        self.pool = BlockPool(num_blocks, evicted=self._forget)
        self.queried_tokens = 0
        """Prompt tokens looked up, once per request."""
        self.hit_tokens = 0
        """Of those, tokens found: in shared blocks or in copied ones."""
        self.misses = MissCounts()
        self.use = UseTotals()
        self.ghost = GhostCache(num_blocks, block_size) if enable_prefix_caching else None
        """Says what other numbers of blocks would have found."""
        self._evicted = Evicted(min(max(4 * num_blocks, LEAST_EVICTED), MOST_EVICTED))
        self._contents = Contents() if explain_salts else None
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
    def num_held(self) -> int:
        """Blocks that running requests hold."""
        return self.pool.num_blocks - self.pool.num_free

    @property
    def usage(self) -> float:
        """Share of the blocks that running requests hold, 0 to 1."""
        return self.num_held / self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def open(self, salt: str = "", group: str = "", longest: int = 0) -> BlockTable:
        """An empty table. ``group`` names requests that share their prompt even when prefix caching is off. ``longest``:
        the most tokens that the request may come to; blocks are taken as they are needed, so here it does not matter."""
        if self.enable_prefix_caching:
            return BlockTable(root_hash(salt), salted=bool(salt) and self._contents is not None)
        self._groups += 1
        return BlockTable(root_hash(salt, f"group {group}" if group else f"alone {self._groups}"))

    def match(self, table: BlockTable, tokens: Sequence[int]) -> Match:
        """What is known of the start of ``tokens``, never all of it: the last token is computed."""
        size = self.block_size
        limit = (len(tokens) - 1) // size
        table.extend_hashes(tokens, size, limit)
        found = []
        for digest in islice(table.hashes, limit):
            block = self.index.find(digest)
            if block is None:
                break
            found.append(block)
        known = len(found) * size
        rest = tokens[known : min(known + size, len(tokens) - 1)]
        beginning = self.index.find_beginning(table.parent(len(found)), rest)
        if beginning.common < self.index.least_common:
            return Match(found, known, None, beginning)
        return Match(found, known + beginning.common, beginning.block, beginning)

    def explain(self, table: BlockTable, tokens: Sequence[int], match: Match | None) -> Lookup:
        """Why ``match`` found no more of ``tokens``. None: nothing was looked for. Changes nothing."""
        if match is None or not self.enable_prefix_caching:
            matched = 0 if match is None else match.num_tokens
            return Lookup(matched, Miss.DISABLED, matched)
        last, size, num_blocks = len(tokens) - 1, self.block_size, len(match.blocks)
        position = num_blocks * size + match.beginning.common
        if match.num_tokens >= last:
            reason = Miss.NONE
        elif position == last:
            reason = Miss.SHORT
        elif num_blocks < last // size and table.hashes[num_blocks] in self._evicted:
            reason = Miss.EVICTED
        elif num_blocks < last // size and self._is_salted(table.content(num_blocks, tokens, size)):
            reason = Miss.SALT
        elif match.beginning.forks and position:
            reason = Miss.DIVERGED
        else:
            reason = Miss.SHORT if len(tokens) < size and not position else Miss.NEVER_SEEN
        return Lookup(match.num_tokens, reason, position)

    def count(self, table: BlockTable, lookup: Lookup, prompt: Sequence[int]) -> None:
        """A request was let in with what ``lookup`` found of its prompt. Once per request, however often it is resumed."""
        self.misses.add(lookup, len(prompt))
        if lookup.reason is Miss.DISABLED:
            return
        self.queried_tokens += len(prompt)
        self.hit_tokens += lookup.matched
        if self.ghost is not None:
            self.ghost.count(table.root, table.hashes, table.found, prompt, lookup.matched, self.num_held)

    def _is_salted(self, content: bytes) -> bool:
        """Whether a block that could not be found is cached under another salt."""
        return self._contents is not None and (content in self._contents or self.index.find(content) is not None)

    def fits(self, table: BlockTable, matched: Sequence[int], num_tokens: int, bespoken: int = 0) -> bool:
        """Whether ``table``, new, with ``matched`` blocks could now grow to ``num_tokens`` and leave ``bespoken`` blocks."""
        wanted = self.blocks_for(max(num_tokens, table.reserve)) - len(matched)
        return self.pool.has_room(wanted, matched, bespoken)

    def adopt(self, table: BlockTable, match: Match) -> tuple[tuple[int, int], ...]:
        """Start an empty table with what ``match`` found; returns the (source, destination) copy to make, if any.

        If there is one to make, the caller has checked that a block is free. Copies must be made in the order returned
        and before anything is computed. Then each finds in its source what ``match`` found there: since then, the
        source can only have been handed out again, to be computed into (later) or to be copied into (a later copy).
        An earlier copy cannot have overwritten it, for its destination was not indexed when ``match`` looked.
        """
        assert not table.blocks
        for block in match.blocks:
            self.pool.share(block)
        table.blocks.extend(match.blocks)
        table.indexed = len(match.blocks)
        copies: tuple[tuple[int, int], ...] = ()
        if match.source is not None:
            self.pool.touch(match.source)
            destination = self.pool.take()
            table.blocks.append(destination)
            if destination != match.source:  # the last free block is its own copy
                copies = ((match.source, destination),)
        table.ids = tuple(table.blocks)
        if self.ghost is not None:
            table.found, table.followed = self.ghost.hold(table.hashes), len(table.hashes)
        return copies

    def grow(self, table: BlockTable, num_tokens: int) -> bool:
        """Make room for positions ``0 .. num_tokens - 1``; False, and nothing changed, if too few blocks are free."""
        missing = -(-num_tokens // self.block_size) - len(table.blocks)
        if missing <= 0:
            return True
        if not table.blocks and table.reserve > num_tokens:
            missing = self.blocks_for(table.reserve)
        taken = self.pool.take_all(missing)
        if taken is None:
            return False
        table.blocks.extend(taken)
        table.ids = tuple(table.blocks)
        if self.ghost is not None:
            self.ghost.settle(self.num_held)
        return True

    def index_computed(self, table: BlockTable, tokens: Sequence[int], computed: int) -> list[bytes]:
        """Make the blocks findable that ``computed`` tokens fill; returns the hashes of those newly filled."""
        full = computed // self.block_size
        if full <= table.indexed:
            return []
        table.extend_hashes(tokens, self.block_size, full)
        filled = table.hashes[table.indexed : full]
        for i, digest in enumerate(filled, table.indexed):
            held = tokens[i * self.block_size : (i + 1) * self.block_size]
            if self.index.insert(digest, table.blocks[i], table.parent(i), held):
                self._evicted.discard(digest)
                if self._contents is not None and table.contents is not None:
                    self._contents.add(table.blocks[i], table.content(i, tokens, self.block_size))
        table.indexed = full
        if self.ghost is not None and full > table.followed:
            self.ghost.hold(table.hashes[table.followed : full])
            table.followed = full
        return filled

    def close(self, table: BlockTable, tokens: Sequence[int] = (), computed: int = 0) -> None:
        """Give all blocks back, last first, so that a prefix outlives its continuations. The table may start again.

        Of the block that the first ``computed`` of ``tokens`` end in, later requests may still copy the beginning.
        """
        unfinished = tokens[table.indexed * self.block_size : computed]
        parent = table.parent(table.indexed)
        left = bool(unfinished) and self.index.insert_unfinished(table.blocks[table.indexed], parent, unfinished)
        for block in reversed(table.blocks):
            self.pool.release(block, keep=self.index.holds(block))
        if self.ghost is not None:
            if left:
                self.ghost.leave(parent, unfinished)
            self.ghost.release(table.hashes[: table.followed], table.indexed, self.num_held)
            table.followed = 0
        table.blocks.clear()
        table.ids = ()
        table.indexed = 0

    def measure(self, running: Iterable[Holder]) -> KvUse:
        """How full the blocks are that ``running``, which are all that hold any, hold now. Once per step: it is summed."""
        use = kv_use(self.num_held, self.block_size, running)
        self.use.add(use)
        return use

    def _forget(self, block: int) -> None:
        """A kept block is about to be overwritten."""
        digest = self.index.forget(block)
        if digest is not None:
            self._evicted.add(digest)
        if self._contents is not None:
            self._contents.discard(block)

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """``tables`` are all the open tables: they hold exactly the references counted; raises AssertionError."""
        self.pool.check_integrity()
        self.index.check_integrity()
        if self.ghost is not None:
            self.ghost.check_integrity()
        assert all(self.index.find(digest) is None for digest in self._evicted), "a cached block is listed as evicted"
        if self._contents is not None:
            assert all(self.index.hash_of(block) for block in self._contents), "a content without its block"
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
