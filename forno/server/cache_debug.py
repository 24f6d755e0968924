"""``GET /debug/cache``: the KV cache for a person or a script that decides how large it should be.

It tells counts over all requests, and nothing of one. Behind the server's key like every endpoint that says more than a
health check; ``salt`` is only ever counted with ``--explain-salts``.
"""

from __future__ import annotations

from forno.engine.cache_report import CacheReport
from forno.server.endpoint import Call
from forno.server.limits import App
from forno.server.respond import json
from forno.server.serving import Serving
from forno.server.wire import Out

GIB = 1 << 30


class CacheSize(Out, kw_only=True):
    """One point of the curve."""

    scale: float
    """In sizes of this server's cache."""
    blocks: int
    gib: float | None
    hit_share: float


class CacheMiss(Out, kw_only=True):
    """Look-ups that ended for one reason; ``none``: everything that can be found was."""

    reason: str
    lookups: int
    missed_tokens: int


class CacheWaste(Out, kw_only=True):
    """Token slots of the blocks that running requests hold."""

    reserved_tokens: int
    used_tokens: int
    waste_share: float
    mean_waste_share: float
    """Averaged over all steps, each weighted by what it reserved."""


class CacheState(Out, kw_only=True):
    """``GET /debug/cache``."""

    blocks: int
    block_size: int
    gib: float | None
    """Null where the backend does not tell its memory."""
    blocks_held: int
    blocks_found: int
    """Full blocks that a prompt could find now."""
    evictions: int
    prompt_tokens: int
    hit_tokens: int
    hit_share: float | None
    """Of the prompt tokens looked up; null before the first."""
    misses: list[CacheMiss]
    """By reason, of those that occurred."""
    curve: list[CacheSize]
    followed_share: float
    """Of the blocks, those that the curve is estimated from."""
    waste: CacheWaste


async def cache_state(serving: Serving, body: None, call: Call) -> App:
    kv_bytes: int = getattr(serving.engine.engine.runner, "kv_bytes", 0)  # not every runner has memory
    return json(state_of(serving.engine.cache_report(), kv_bytes))


def state_of(report: CacheReport, kv_bytes: int) -> CacheState:
    """``kv_bytes``: memory of all blocks, 0 if unknown."""
    queried, slots = report.queried_tokens, report.reserved_slot_steps
    reserved, used = report.use
    return CacheState(
        blocks=report.num_blocks,
        block_size=report.block_size,
        gib=round(kv_bytes / GIB, 3) or None,
        blocks_held=report.num_held,
        blocks_found=report.num_found,
        evictions=report.evictions,
        prompt_tokens=queried,
        hit_tokens=report.hit_tokens,
        hit_share=round(report.hit_tokens / queried, 4) if queried else None,
        misses=[
            CacheMiss(reason=reason, lookups=count, missed_tokens=report.missed_tokens[reason])
            for reason, count in report.lookups.items()
            if count
        ],
        curve=[
            CacheSize(
                scale=point.scale,
                blocks=point.num_blocks,
                gib=round(kv_bytes / GIB / report.num_blocks * point.num_blocks, 3) or None,
                hit_share=round(point.hit_share, 4),
            )
            for point in report.sizes
        ],
        followed_share=round(report.followed_share, 4),
        waste=CacheWaste(
            reserved_tokens=reserved,
            used_tokens=used,
            waste_share=round(report.use.waste_share, 4),
            mean_waste_share=round(1 - report.used_slot_steps / slots, 4) if slots else 0.0,
        ),
    )
