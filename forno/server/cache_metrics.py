"""The KV cache's own metrics: misses by reason, what other sizes would find, and wasted slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from forno.engine.cache_report import CacheReport

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from forno.server.metrics import Family

HIT = "none"
"""The reason of look-ups that missed nothing."""


def cache_families(make: Family, report: CacheReport) -> Iterator[Metric]:
    text = "Prefix look-ups that did not find all of the prompt, by the reason that they ended."
    yield make.counters("reason", "prefix_cache_misses", text, _misses(report.lookups))
    text = "Prompt tokens not found in the prefix cache, by the reason that their look-up ended."
    yield make.counters("reason", "prefix_cache_missed_tokens", text, _misses(report.missed_tokens))
    text = "Share of recent prompt tokens that a prefix cache of another capacity would have found, 0 to 1."
    yield make.gauges("capacity", "ghost_cache_hit_share", text, {f"{size.scale:g}x": size.hit_share for size in report.sizes})
    text = "Share of the token slots in the blocks of running requests that hold no token, 0 to 1."
    yield make.gauge("kv_waste_share", text, report.use.waste_share)
    text = "Token slots in the blocks of running requests, summed over steps."
    yield make.counter("kv_reserved_slot_steps", text, report.reserved_slot_steps)
    yield make.counter("kv_used_slot_steps", "Of those, slots that held a token.", report.used_slot_steps)


def _misses(counts: Mapping[str, int]) -> dict[str, float]:
    return {reason: float(count) for reason, count in counts.items() if reason != HIT}
