"""The chained hash: what it depends on, and its fixed value, which other processes rely on."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.cache import PrefixIndex, block_hash, root_hash
from forno.cache.prefix_index import Beginning


def test_a_hash_covers_tokens_parent_salt_and_group() -> None:
    roots = {root_hash(""), root_hash("a"), root_hash("", "a"), root_hash("1:a"), root_hash("a", "a")}
    assert len(roots) == 5
    root = root_hash("")
    children = {block_hash(root, [1, 2]), block_hash(root, [2, 1]), block_hash(root, [1, 2, 0]), block_hash(b"x" * 16, [1, 2])}
    assert len(children) == 4


def test_a_hash_is_the_same_in_every_process() -> None:
    """As written in the module's docstring, spelled out by hand."""
    tokens = b"\x01\x00\x00\x00" + b"\x00\x01\x00\x00"
    root = blake2b(b"4:salt", digest_size=16).digest()
    assert root_hash("salt") == root
    assert block_hash(root, (1, 256)) == blake2b(root + tokens, digest_size=16).digest()


def test_a_salt_may_be_any_text() -> None:
    assert root_hash("\ud800") != root_hash("\udfff")


ROOT = root_hash("")


def full(index: PrefixIndex, block: int, *tokens: int, parent: bytes = ROOT) -> bytes:
    digest = block_hash(parent, tokens)
    index.insert(digest, block, parent, tokens)
    return digest


def test_the_first_block_of_equal_ones_stays() -> None:
    index = PrefixIndex(1)
    digest = full(index, 1, 5, 6)
    full(index, 2, 5, 6)
    assert (index.find(digest), index.holds(1), index.holds(2)) == (1, True, False)
    index.check_integrity()
    index.forget(1)
    assert index.find(digest) is None
    assert index.find_beginning(ROOT, (5, 6)) == Beginning()
    assert len(index) == 0
    index.check_integrity()


def test_the_block_that_begins_most_alike_is_found() -> None:
    index = PrefixIndex(2)
    full(index, 1, 5, 6, 7, 8)
    full(index, 2, 5, 6, 7, 9)
    full(index, 3, 5, 6, 0, 0)
    full(index, 4, 5, 6, 7, 8, parent=b"other")
    index.check_integrity()
    assert index.find_beginning(ROOT, (5, 6, 7, 8)) == (1, 4, False)
    assert index.find_beginning(ROOT, (5, 6, 7, 9, 1)) == (2, 4, False)
    assert index.find_beginning(ROOT, (5, 6, 1, 1))[1:] == (2, True)
    assert index.find_beginning(ROOT, (5, 6, 7, 10)) == (2, 3, True)
    assert index.find_beginning(ROOT, (5, 1, 7, 8))[1:] == (1, True), "one token is known too"
    assert index.find_beginning(ROOT, (4,)) == (None, 0, True)
    assert index.find_beginning(b"nobody", (5, 6, 7, 8)) == (None, 0, False)
    index.forget(2)
    assert index.find_beginning(ROOT, (5, 6, 7, 10)) == (1, 3, True)


@settings(max_examples=200)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=30), st.lists(st.integers(0, 2), max_size=6))
def test_no_beginning_is_missed(held: list[list[int]], wanted: list[int]) -> None:
    """Against a comparison with every sibling."""
    index, listed = PrefixIndex(1), dict[int, list[int]]()
    for block, tokens in enumerate(held):
        if index.insert_unfinished(block, ROOT, tokens):
            listed[block] = tokens
        index.check_integrity()
    for block in list(listed)[::3]:
        index.forget(block)
        del listed[block]
    index.check_integrity()
    found = index.find_beginning(ROOT, wanted)
    pairs = {block: list(enumerate(zip(tokens, wanted, strict=False))) for block, tokens in listed.items()}
    agreed = {block: next((i for i, (a, b) in both if a != b), None) for block, both in pairs.items()}
    common = {block: len(pairs[block]) if n is None else n for block, n in agreed.items()}
    most = max(common.values(), default=0)
    assert found.common == most
    assert (found.block is None) == (most == 0)
    assert found.block is None or common[found.block] == most
    assert found.forks == any(agreed[block] == most for block in listed)


def test_an_unfinished_block_is_found_by_its_beginning_only() -> None:
    index = PrefixIndex(2)
    index.insert_unfinished(1, ROOT, (5, 6, 7))
    assert index.find_beginning(ROOT, (5, 6, 7, 8)) == (1, 3, False), "known no further, and nobody went on differently"
    assert index.find(block_hash(ROOT, (5, 6, 7))) is None
    assert not index.insert_unfinished(2, ROOT, (5, 6))
    assert not index.insert_unfinished(3, ROOT, (9,))
    assert not index.holds(2), "block 1 holds all of it"
    assert not index.holds(3), "too short to be found"
    index.check_integrity()
    index.forget(1)
    assert not index.holds(1)
    index.check_integrity()


def test_integrity_notices_a_lost_direction() -> None:
    index = PrefixIndex(1)
    full(index, 1, 5, 6)
    index._hashes[1] = b"other"
    with pytest.raises(AssertionError, match="another hash"):
        index.check_integrity()


def test_integrity_notices_other_tokens() -> None:
    index = PrefixIndex(1)
    index.insert(block_hash(ROOT, (5, 6)), 1, ROOT, (5, 7))
    with pytest.raises(AssertionError, match="other tokens"):
        index.check_integrity()


def test_integrity_notices_a_block_that_is_not_listed() -> None:
    index = PrefixIndex(1)
    full(index, 1, 5, 6)
    index._siblings.clear()
    with pytest.raises(AssertionError, match="not at all"):
        index.check_integrity()
