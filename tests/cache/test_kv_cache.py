"""Block tables over one pool: growing, sharing, finding prefixes again, and giving back."""

from __future__ import annotations

import pytest

from forno.cache import BlockTable, KvCache

TOKENS = tuple(range(10, 30))


def filled(cache: KvCache, tokens: tuple[int, ...] = TOKENS, salt: str = "", group: str = "") -> BlockTable:
    """A table whose ``tokens`` are all computed."""
    table = cache.open(salt, group)
    cache.adopt(table, cache.match(table, tokens))
    assert cache.grow(table, len(tokens))
    cache.index_computed(table, tokens, len(tokens))
    return table


def test_a_prefix_is_found_by_whole_blocks_and_never_whole() -> None:
    cache = KvCache(10, 4)
    first = filled(cache)
    for length, blocks in ((20, 4), (21, 5), (17, 4), (16, 3), (5, 1), (4, 0), (1, 0)):
        tokens = (*TOKENS, 99)[:length]
        assert cache.match(cache.open(), tokens) == first.blocks[:blocks], f"{length} tokens"


def test_only_computed_blocks_are_found() -> None:
    cache = KvCache(10, 4)
    table = cache.open()
    assert cache.grow(table, 20)
    assert cache.index_computed(table, TOKENS, 11) == table.hashes[:2]
    assert cache.index_computed(table, TOKENS, 11) == []
    assert len(cache.match(cache.open(), TOKENS)) == 2


def test_shared_blocks_are_counted_and_outlive_their_first_owner() -> None:
    cache = KvCache(6, 4)
    first = filled(cache)
    second = filled(cache)
    assert second.blocks[:4] == first.blocks[:4]
    assert second.blocks[4] != first.blocks[4]
    cache.check_integrity([first, second])
    assert cache.num_free == 0
    cache.close(first)
    cache.check_integrity([first, second])
    assert cache.num_free == 1
    cache.close(second)
    assert (cache.num_free, cache.usage) == (6, 0.0)


def test_a_prefix_outlives_its_continuation() -> None:
    cache = KvCache(5, 4)
    cache.close(filled(cache))
    other = cache.open("other")
    assert cache.grow(other, 8)
    assert len(cache.match(cache.open(), TOKENS)) == 3, "the last blocks were taken, not the first"


def test_growing_is_all_or_nothing() -> None:
    cache = KvCache(3, 4)
    table = cache.open()
    assert cache.grow(table, 5)
    assert not cache.grow(table, 13)
    assert len(table.blocks) == 2
    assert cache.grow(table, 8)
    assert len(table.blocks) == 2
    assert table.ids == tuple(table.blocks)


def test_fits_counts_kept_blocks_once() -> None:
    """A matched block that nobody holds is free until it is adopted; it must not be counted as room for the rest."""
    cache = KvCache(5, 4)
    cache.close(filled(cache))
    matched = cache.match(cache.open(), TOKENS)
    assert len(matched) == 4
    assert cache.fits(matched, 20)
    assert not cache.fits(matched, 21)
    assert not cache.fits(matched, 20, bespoken=1)


@pytest.mark.parametrize(
    ("caching", "one", "other", "shared"),
    [
        (True, ("", ""), ("", ""), True),
        (True, ("a", ""), ("b", ""), False),
        (True, ("a", "g"), ("a", "h"), True),
        (False, ("", ""), ("", ""), False),
        (False, ("", "g"), ("", "g"), True),
        (False, ("", "g"), ("", "h"), False),
        (False, ("a", "g"), ("b", "g"), False),
        (False, ("", ""), ("", "alone 2"), False),
    ],
)
def test_who_shares(caching: bool, one: tuple[str, str], other: tuple[str, str], shared: bool) -> None:
    cache = KvCache(20, 4, enable_prefix_caching=caching)
    filled(cache, salt=one[0], group=one[1])
    assert bool(cache.match(cache.open(*other), TOKENS)) == shared


def test_integrity_notices_a_leak() -> None:
    cache = KvCache(4, 4)
    table = filled(cache, TOKENS[:4])
    with pytest.raises(AssertionError, match="leaked"):
        cache.check_integrity([])
    cache.check_integrity([table])
