"""Random use of the pool against a model that keeps each state in a plain list."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from forno.cache import BlockPool


def test_kept_blocks_are_taken_least_recently_used_first() -> None:
    evicted: list[int] = []
    pool = BlockPool(3, evicted.append)
    a, b, c = pool.take(), pool.take(), pool.take()
    pool.release(b, keep=True)
    pool.release(a, keep=True)
    pool.release(c, keep=False)
    assert pool.take() == c, "an empty block costs nobody a prefix"
    assert evicted == []
    assert [pool.take(), pool.take()] == [b, a]
    assert evicted == [b, a]
    assert pool.num_evictions == 2


def test_a_used_block_is_most_recent_again() -> None:
    pool = BlockPool(2, lambda block: None)
    a, b = pool.take(), pool.take()
    pool.release(a, keep=True)
    pool.release(b, keep=True)
    pool.share(a)
    pool.release(a, keep=True)
    assert pool.take() == b


@settings(max_examples=60)
@given(st.integers(1, 6), st.lists(st.tuples(st.sampled_from(["take", "share", "keep", "drop"]), st.integers(0, 5))))
def test_random_use_matches_a_plain_model(num_blocks: int, steps: list[tuple[str, int]]) -> None:
    evicted: list[int] = []
    pool = BlockPool(num_blocks, evicted.append)
    held, kept = dict[int, int](), list[int]()
    for action, pick in steps:
        if action == "take":
            if pool.num_free == 0:
                assert len(held) == num_blocks
                continue
            oldest = kept[0] if kept and len(held) + len(kept) == num_blocks else None
            block = pool.take()
            assert block not in held
            assert oldest is None or (block == oldest and evicted[-1] == oldest)
            kept = [b for b in kept if b != block]
            held[block] = 1
        elif action == "share" and (found := sorted(held) + kept):
            block = found[pick % len(found)]
            pool.share(block)
            kept = [b for b in kept if b != block]
            held[block] = held.get(block, 0) + 1
        elif action in ("keep", "drop") and held:
            block = sorted(held)[pick % len(held)]
            pool.release(block, keep=action == "keep")
            held[block] -= 1
            if not held[block]:
                del held[block]
                if action == "keep":
                    kept.append(block)
        pool.check_integrity()
        assert pool.num_free == num_blocks - len(held)
        assert all(pool.is_kept(b) == (b in kept) for b in range(num_blocks))
