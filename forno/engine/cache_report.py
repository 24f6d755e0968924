"""What the KV cache says of itself, as plain data: what was found and why no more, what other sizes would have found, and
how much of what is reserved holds tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forno.cache import KvCache
from forno.cache.ghost import Size
from forno.cache.use import KvUse


@dataclass(frozen=True, slots=True)
class CacheReport:
    """One moment. Counts are since the start."""

    num_blocks: int
    block_size: int
    """Tokens per block."""
    num_held: int
    """Blocks that running requests hold."""
    num_found: int
    """Full blocks that a prompt could find now, held or not."""
    evictions: int
    queried_tokens: int
    """Prompt tokens looked up in the prefix cache."""
    hit_tokens: int
    """Of those, tokens found."""
    lookups: Mapping[str, int]
    """By the reason that they ended; ``none`` are whole hits."""
    missed_tokens: Mapping[str, int]
    """Prompt tokens not found, by the reason that their look-up ended."""
    sizes: tuple[Size, ...]
    """What caches of other sizes would have found; empty before the first look-up, and without a prefix cache."""
    followed_share: float
    """Of the blocks, those that ``sizes`` were estimated from."""
    use: KvUse
    """After the latest step."""
    reserved_slot_steps: int
    """Reserved token slots, summed over steps."""
    used_slot_steps: int
    """Of those, slots that held a token."""


def cache_report(cache: KvCache) -> CacheReport:
    """Any thread may ask: it only reads numbers, which may be a step apart."""
    return CacheReport(
        num_blocks=cache.num_blocks,
        block_size=cache.block_size,
        num_held=cache.num_held,
        num_found=len(cache.index),
        evictions=cache.pool.num_evictions,
        queried_tokens=cache.queried_tokens,
        hit_tokens=cache.hit_tokens,
        lookups={reason.value: count for reason, count in cache.misses.lookups.items()},
        missed_tokens={reason.value: count for reason, count in cache.misses.tokens.items()},
        sizes=() if cache.ghost is None else tuple(cache.ghost.curve()),
        followed_share=0.0 if cache.ghost is None else cache.ghost.rate,
        use=cache.use.last,
        reserved_slot_steps=cache.use.reserved,
        used_slot_steps=cache.use.used,
    )
