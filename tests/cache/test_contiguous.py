"""Runs of neighbouring blocks: first fit, and pieces that join again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.cache import ContiguousCache
from forno.cache.contiguous import RunPool

TOKENS = tuple(range(40))


def test_the_first_run_that_is_long_enough() -> None:
    pool = RunPool(10)
    runs = [pool.take_all(n) for n in (2, 3, 4)]
    assert runs == [[0, 1], [2, 3, 4], [5, 6, 7, 8]]
    for block in (0, 1, 4, 3, 2):
        pool.release(block, keep=False)
        pool.check_integrity()
    assert pool.num_free == 6
    assert (pool.has_room(5), pool.has_room(6)) == (True, False), "six are free, but not side by side"
    assert pool.take_all(6) is None
    assert pool.take_all(5) == [0, 1, 2, 3, 4]
    assert pool.take_all(1) == [9]
    pool.check_integrity()


@settings(max_examples=60)
@given(st.integers(1, 12), st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.randoms(use_true_random=False))))
def test_random_use_matches_a_plain_model(num_blocks: int, steps: list) -> None:
    pool, held = RunPool(num_blocks), list[list[int]]()
    for take, count, rng in steps:
        free = set(range(num_blocks)) - {block for run in held for block in run}
        if take:
            fits = [b for b in range(num_blocks) if free >= set(range(b, b + count))]
            assert pool.has_room(count) == bool(fits)
            run = pool.take_all(count)
            assert run == (list(range(fits[0], fits[0] + count)) if fits else None)
            held += [run] if run else []
        elif held:
            run = held.pop(rng.randrange(len(held)))
            rng.shuffle(run)
            for block in run:
                pool.release(block, keep=False)
        pool.check_integrity()
        assert pool.num_free == num_blocks - sum(map(len, held))


@pytest.mark.parametrize(("as_asked", "blocks"), [(False, 6), (True, 3)])
def test_a_table_is_reserved_whole_and_stays(as_asked: bool, blocks: int) -> None:
    cache = ContiguousCache(8, 4, 24, as_asked)
    table = cache.open(longest=12)
    assert cache.fits(table, (), 5)
    assert cache.grow(table, 5)
    assert table.blocks == list(range(blocks))
    assert cache.grow(table, 12)
    assert len(table.blocks) == blocks
    cache.check_integrity([table])
    cache.close(table, TOKENS, 12)
    assert cache.num_free == 8
    cache.check_integrity([])


def test_nothing_is_found_again_not_even_by_the_same_request() -> None:
    cache = ContiguousCache(8, 4, 16)
    table = cache.open(group="g")
    assert cache.grow(table, 13)
    assert len(cache.index_computed(table, TOKENS, 13)) == 3, "who waits for them is woken"
    assert cache.index_computed(table, TOKENS, 13) == []
    cache.close(table, TOKENS, 13)
    assert cache.match(table, TOKENS).num_tokens == 0
    assert cache.match(cache.open(group="g"), TOKENS).num_tokens == 0
    assert cache.open(group="g").root != table.root


def test_no_more_is_reserved_than_there_is() -> None:
    cache = ContiguousCache(4, 4, 1000)
    table = cache.open()
    assert cache.grow(table, 1)
    assert len(table.blocks) == 4
    assert not cache.fits(cache.open(), (), 1)
    assert not cache.grow(cache.open(), 1)
