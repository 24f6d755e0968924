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
        assert cache.match(cache.open(), tokens).blocks == first.blocks[:blocks], f"{length} tokens"


@pytest.mark.parametrize(("size", "least"), [(4, 1), (8, 1), (32, 4), (64, 8), (96, 12)])
def test_the_longest_beginning_is_copied_if_it_is_worth_it(size: int, least: int) -> None:
    cache = KvCache(10, size)
    first = filled(cache, tuple(range(2 * size)))
    for common in (0, least - 1, least, size - 1):
        match = cache.match(cache.open(), (*range(size + common), 999, 999))
        expected = (first.blocks[1], size + common) if common >= least else (None, size)
        assert (match.blocks, match.source, match.num_tokens) == (first.blocks[:1], *expected)
    whole = cache.match(cache.open(), tuple(range(2 * size)))
    assert (len(whole.blocks), whole.num_tokens) == (1, 2 * size - 1), "never the last token"


def test_a_copy_is_nobody_elses() -> None:
    cache = KvCache(10, 4)
    first = filled(cache)
    second = cache.open()
    tokens = (*TOKENS[:6], 1, 2)
    copies = cache.adopt(second, cache.match(second, tokens))
    assert copies == ((first.blocks[1], second.blocks[1]),)
    assert second.blocks[0] == first.blocks[0]
    cache.check_integrity([first, second])
    assert cache.index_computed(second, tokens, 6) == []
    assert len(cache.index_computed(second, tokens, 8)) == 1
    cache.check_integrity([first, second])
    assert cache.match(cache.open(), (*tokens, 0)).blocks == second.blocks


def test_a_source_in_use_outlives_others() -> None:
    cache = KvCache(3, 4)
    for first in (10, 20, 30):
        cache.close(filled(cache, tuple(range(first, first + 4))))
    table = cache.open()
    cache.adopt(table, cache.match(table, (10, 11, 12, 0)))
    cache.check_integrity([table])
    assert cache.match(cache.open(), (10, 11, 12, 1)).num_tokens == 3
    assert cache.match(cache.open(), (20, 21, 22, 1)).num_tokens == 0, "the oldest of the others was taken"


def test_an_unfinished_block_is_copied_up_to_what_was_computed() -> None:
    cache = KvCache(10, 4)
    table = filled(cache, TOKENS[:7])
    cache.close(table, TOKENS[:8], 7)
    cache.check_integrity([])
    match = cache.match(cache.open(), TOKENS)
    assert (len(match.blocks), match.num_tokens) == (1, 7)
    assert cache.num_free == 10


def test_only_computed_blocks_are_found() -> None:
    cache = KvCache(10, 4)
    table = cache.open()
    assert cache.grow(table, 20)
    assert cache.index_computed(table, TOKENS, 11) == table.hashes[:2]
    assert cache.index_computed(table, TOKENS, 11) == []
    assert len(cache.match(cache.open(), TOKENS).blocks) == 2


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
    assert len(cache.match(cache.open(), TOKENS).blocks) == 3, "the last blocks were taken, not the first"


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
    table = cache.open()
    matched = cache.match(table, TOKENS).blocks
    assert len(matched) == 4
    assert cache.fits(table, matched, 20)
    assert not cache.fits(table, matched, 21)
    assert not cache.fits(table, matched, 20, bespoken=1)


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
    found = cache.match(cache.open(*other), TOKENS)
    assert (bool(found.blocks), bool(cache.match(cache.open(*other), TOKENS[:3]).source is not None)) == (shared, shared)


def test_integrity_notices_a_leak() -> None:
    cache = KvCache(4, 4)
    table = filled(cache, TOKENS[:4])
    with pytest.raises(AssertionError, match="leaked"):
        cache.check_integrity([])
    cache.check_integrity([table])
