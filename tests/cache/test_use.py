"""How much of what running requests hold is filled."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from forno.cache import BlockTable, KvCache
from forno.cache.use import KvUse

TOKENS = tuple(range(20))


@dataclass
class Running:
    table: BlockTable
    computed: int


def admitted(cache: KvCache, tokens: tuple[int, ...]) -> Running:
    table = cache.open()
    cache.adopt(table, cache.match(table, tokens))
    assert cache.grow(table, len(tokens))
    cache.index_computed(table, tokens, len(tokens))
    return Running(table, len(tokens))


def test_a_shared_block_counts_once() -> None:
    cache = KvCache(10, 4)
    one = admitted(cache, TOKENS[:18])
    assert cache.measure([one]) == KvUse(20, 18)
    other = admitted(cache, (*TOKENS[:8], 99))
    assert other.table.blocks[:2] == one.table.blocks[:2]
    assert cache.measure([one, other]) == KvUse(24, 19)
    assert cache.use.last.waste_share == pytest.approx(5 / 24)
    cache.close(one.table, TOKENS[:18], 18)
    cache.close(other.table)
    assert cache.measure([]) == KvUse()
    assert (cache.use.reserved, cache.use.used, cache.use.last.waste_share) == (44, 37, 0)
