"""The chained hash: what it depends on, and its fixed value, which other processes rely on."""

from __future__ import annotations

from hashlib import blake2b

import pytest

from forno.cache import PrefixIndex, block_hash, root_hash


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


def test_the_first_block_of_equal_ones_stays() -> None:
    index = PrefixIndex()
    index.insert(b"h", 1)
    index.insert(b"h", 2)
    assert (index.find(b"h"), index.holds(1), index.holds(2)) == (1, True, False)
    index.check_integrity()
    index.forget(1)
    assert index.find(b"h") is None
    assert len(index) == 0


def test_integrity_notices_a_lost_direction() -> None:
    index = PrefixIndex()
    index.insert(b"h", 1)
    index._hashes[1] = b"other"
    with pytest.raises(AssertionError):
        index.check_integrity()
