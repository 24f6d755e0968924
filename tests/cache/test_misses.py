"""Why a prompt was found no further: each reason, the exact token, and what must not be told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.cache import BlockTable, KvCache, Lookup, Miss, root_hash
from forno.cache.misses import Contents, Evicted

SIZE = 32
DOCUMENT = tuple(range(1000, 1000 + 3 * SIZE))


def run(cache: KvCache, tokens: tuple[int, ...], salt: str = "", close: bool = True) -> tuple[Lookup, BlockTable]:
    """A request whose ``tokens`` are its prompt; all of them are computed."""
    table = cache.open(salt)
    match = cache.match(table, tokens)
    lookup = cache.explain(table, tokens, match)
    cache.adopt(table, match)
    cache.count(table, lookup, tokens)
    assert cache.grow(table, len(tokens))
    cache.index_computed(table, tokens, len(tokens))
    if close:
        cache.close(table, tokens, len(tokens))
    return lookup, table


def lookup(cache: KvCache, tokens: tuple[int, ...], salt: str = "") -> Lookup:
    table = cache.open(salt)
    return cache.explain(table, tokens, cache.match(table, tokens))


def test_nothing_begins_like_it() -> None:
    cache = KvCache(20, SIZE)
    assert run(cache, DOCUMENT)[0] == Lookup(0, Miss.NEVER_SEEN, 0)
    assert lookup(cache, (7, *DOCUMENT)) == Lookup(0, Miss.NEVER_SEEN, 0)


def test_all_that_can_be_found_was_found() -> None:
    cache = KvCache(20, SIZE)
    run(cache, DOCUMENT)
    assert lookup(cache, DOCUMENT) == Lookup(len(DOCUMENT) - 1, Miss.NONE, len(DOCUMENT) - 1)
    assert lookup(cache, DOCUMENT[: SIZE + 1]) == Lookup(SIZE, Miss.NONE, SIZE)


@pytest.mark.parametrize("at", [1, 2, 3, 4, 17, 31, 32, 33, 35, 36, 64, 70, 94])
def test_the_exact_token_where_it_went_another_way(at: int) -> None:
    cache = KvCache(20, SIZE)
    run(cache, DOCUMENT)
    found = lookup(cache, (*DOCUMENT[:at], 5, *DOCUMENT[at + 1 :]))
    assert (found.reason, found.position) == (Miss.DIVERGED, at)
    copied = at % SIZE >= cache.index.least_common
    assert found.matched == (at if copied else at // SIZE * SIZE)


def test_what_goes_on_where_all_others_ended_is_new_text() -> None:
    cache = KvCache(20, SIZE)
    run(cache, DOCUMENT[:70])
    assert lookup(cache, DOCUMENT) == Lookup(70, Miss.NEVER_SEEN, 70)
    run(cache, DOCUMENT[:64])
    cache = KvCache(20, SIZE)
    run(cache, DOCUMENT[:64])
    assert lookup(cache, DOCUMENT) == Lookup(64, Miss.NEVER_SEEN, 64)


def test_evicted() -> None:
    cache = KvCache(4, SIZE)
    run(cache, DOCUMENT)
    run(cache, tuple(range(2 * SIZE)))
    assert lookup(cache, (*DOCUMENT, 1)) == Lookup(2 * SIZE, Miss.EVICTED, 2 * SIZE), "the last block of three was taken"
    run(cache, tuple(range(4 * SIZE)))
    assert lookup(cache, (*DOCUMENT, 1)) == Lookup(0, Miss.EVICTED, 0)
    run(cache, DOCUMENT)
    assert lookup(cache, DOCUMENT).reason is Miss.NONE, "cached again"


def test_too_short() -> None:
    cache = KvCache(20, SIZE)
    assert run(cache, DOCUMENT[:20])[0] == Lookup(0, Miss.SHORT, 0)
    run(cache, DOCUMENT)
    assert lookup(cache, DOCUMENT[: SIZE + 3]) == Lookup(SIZE, Miss.SHORT, SIZE + 2), "two tokens are not worth a copy"
    assert lookup(cache, DOCUMENT[: SIZE + 5]) == Lookup(SIZE + 4, Miss.NONE, SIZE + 4)
    assert lookup(cache, (*DOCUMENT[:10], 0, 0)) == Lookup(10, Miss.DIVERGED, 10)


def test_disabled() -> None:
    cache = KvCache(20, SIZE, enable_prefix_caching=False)
    assert run(cache, DOCUMENT)[0].reason is Miss.DISABLED
    cache = KvCache(20, SIZE)
    run(cache, DOCUMENT)
    assert cache.explain(cache.open(), DOCUMENT, None) == Lookup(0, Miss.DISABLED, 0)
    cache.count(cache.open(), Lookup(0, Miss.DISABLED), DOCUMENT)
    assert cache.queried_tokens == len(DOCUMENT), "nothing was asked for the second time"


@pytest.mark.parametrize(("one", "other"), [("", "a"), ("a", ""), ("a", "b")])
def test_another_salt(one: str, other: str) -> None:
    cache = KvCache(6, SIZE, explain_salts=True)
    run(cache, DOCUMENT, one)
    assert lookup(cache, DOCUMENT, other) == Lookup(0, Miss.SALT, 0)
    run(cache, DOCUMENT[:SIZE], other)
    assert lookup(cache, DOCUMENT, other) == Lookup(SIZE, Miss.SALT, SIZE), "its own prefix was found first"
    assert lookup(cache, (*DOCUMENT[:SIZE], *DOCUMENT), other).reason is not Miss.SALT, "equal tokens after another history"
    run(cache, tuple(range(6 * SIZE)))
    assert lookup(cache, DOCUMENT, "c").reason is Miss.NEVER_SEEN, "no longer cached for anybody"


@pytest.mark.parametrize(("one", "other"), [("", "a"), ("a", ""), ("a", "b")])
def test_another_salts_text_is_not_told_unless_asked_for(one: str, other: str) -> None:
    cache = KvCache(6, SIZE)
    run(cache, DOCUMENT, one)
    assert lookup(cache, DOCUMENT, other) == lookup(KvCache(6, SIZE), DOCUMENT, other) == Lookup(0, Miss.NEVER_SEEN, 0)


def test_each_look_up_is_counted_once_by_its_reason() -> None:
    cache = KvCache(20, SIZE)
    run(cache, DOCUMENT)
    run(cache, (*DOCUMENT[:40], *range(10)))
    run(cache, DOCUMENT)
    counted = {reason: (cache.misses.lookups[reason], cache.misses.tokens[reason]) for reason in Miss}
    assert {reason: counts for reason, counts in counted.items() if counts[0]} == {
        Miss.NEVER_SEEN: (1, 96),
        Miss.DIVERGED: (1, 10),
        Miss.NONE: (1, 1),
    }
    assert cache.queried_tokens - cache.hit_tokens == sum(cache.misses.tokens.values())


def known_texts(cache: KvCache, salt: str) -> list[tuple[int, ...]]:
    """Every text that a prompt under ``salt`` can find: chains of blocks from the root, put together again."""
    texts, heads = [], [(root_hash(salt), ())]
    while heads:
        parent, before = heads.pop()
        for tokens, block in cache.index._siblings.get(parent, ()):
            texts.append((*before, *tokens))
            if (digest := cache.index.hash_of(block)) is not None:
                heads.append((digest, texts[-1]))
    return texts


def expected(cache: KvCache, prompt: tuple[int, ...], salt: str, computed: set[tuple[str, tuple[int, ...]]]) -> Lookup:
    """The same by comparing with everything known. ``computed``: salt and text of all full blocks there ever were."""
    size, last = cache.block_size, len(prompt) - 1
    common = [
        next((i for i, (a, b) in enumerate(zip(t, prompt, strict=False)) if a != b), None) for t in known_texts(cache, salt)
    ]
    ends = [min(len(t), last) if n is None else min(n, last) for t, n in zip(known_texts(cache, salt), common, strict=True)]
    position = max(ends, default=0)
    whole = position // size * size
    matched = position if position - whole >= cache.index.least_common else whole
    following = prompt[: whole + size] if whole + size <= last else None
    if matched == last:
        reason = Miss.NONE
    elif position == last:
        reason = Miss.SHORT
    elif following and (salt, following) in computed:
        reason = Miss.EVICTED
    elif following and any(text[: whole + size] == following for other in SALTS for text in known_texts(cache, other)):
        reason = Miss.SALT
    elif position and any(n == position for n in common):
        reason = Miss.DIVERGED
    else:
        reason = Miss.SHORT if len(prompt) < size and not position else Miss.NEVER_SEEN
    return Lookup(matched, reason, position)


SALTS = ("", "a", "b")
requests = st.tuples(st.lists(st.integers(0, 2), max_size=5), st.integers(1, 70), st.sampled_from(SALTS))


@settings(max_examples=150, deadline=None)
@given(st.integers(4, 20), st.lists(requests, min_size=1, max_size=25))
def test_reasons_against_a_plain_search(num_blocks: int, drawn: list) -> None:
    """Prompts that share beginnings and part anywhere, in caches so small that blocks are often overwritten."""
    cache, computed = KvCache(num_blocks, 16, explain_salts=True), set[tuple[str, tuple[int, ...]]]()
    for choices, length, salt in drawn:
        prompt = tuple((choices[i // 16] if i // 16 < len(choices) else 0) * 10 + i for i in range(length))
        prompt = (*prompt, *choices)
        if cache.blocks_for(len(prompt)) > cache.num_free:
            continue
        wanted = expected(cache, prompt, salt, computed)
        found = run(cache, prompt, salt)[0]
        assert found == wanted
        computed |= {(salt, prompt[:end]) for end in range(16, len(prompt) + 1, 16)}
        cache.check_integrity([])


def test_the_memory_of_evicted_blocks_is_bounded() -> None:
    evicted = Evicted(3)
    for i in [0, 1, 2, 1, 3, 4]:
        evicted.add(bytes([i]))
    assert [bytes([i]) in evicted for i in range(5)] == [False, False, True, True, True]
    evicted.discard(bytes([2]))
    assert len(evicted) == 2


def test_what_is_cached_twice_is_forgotten_with_the_last() -> None:
    contents = Contents()
    contents.add(1, b"x")
    contents.add(2, b"x")
    contents.discard(1)
    contents.discard(7)
    assert b"x" in contents
    contents.discard(2)
    assert (b"x" in contents, len(contents)) == (False, 0)
