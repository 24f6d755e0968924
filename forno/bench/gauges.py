"""A server's gauges from its ``/metrics`` page: running, waiting, KV cache in use. It knows what servers call them."""

from __future__ import annotations

from itertools import chain
from math import isfinite
from typing import TYPE_CHECKING

from forno.bench.client import read_some
from forno.bench.exposition import samples

if TYPE_CHECKING:
    import aiohttp

TIMEOUT = 2.0
MAX_PAGE = 4 << 20
MOST = 1e12
"""Of any gauge: more is no number of requests."""
NAMES = {
    "running": (
        "forno:num_requests_running",
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "llamacpp:requests_processing",
    ),
    "waiting": (
        "forno:num_requests_waiting",
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "llamacpp:requests_deferred",
    ),
    "kv_usage": (
        "forno:kv_cache_usage_perc",
        "vllm:kv_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
    ),
}
"""Field of a sample -> what servers call it."""
Reading = tuple[float | None, float | None, float | None]
"""Requests running, requests waiting, share of the KV cache in use."""


class Gauges:
    """Reads one server's gauges."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url + "/metrics"

    async def __call__(self) -> Reading:
        """The gauges now; None for what the server does not tell, all None if it does not answer within ``TIMEOUT``."""
        import aiohttp

        try:
            async with self._session.get(self._url, timeout=aiohttp.ClientTimeout(total=TIMEOUT)) as response:
                page = await read_some(response.content, MAX_PAGE)
                return parse(page.decode(errors="replace")) if response.status == 200 else (None, None, None)
        except Exception:  # gauges are extra: whatever goes wrong with them, the run goes on without
            return None, None, None


def parse(page: str) -> Reading:
    """The gauges on a page; several series of one name are summed."""
    found: dict[str, float] = {}
    for sample in samples(page, chain(*NAMES.values())):
        found[sample.name] = found.get(sample.name, 0.0) + sample.value
    running, waiting, kv = (next((found[name] for name in names if name in found), None) for names in NAMES.values())
    return _believed(running), _believed(waiting), _believed(kv)


def _believed(value: float | None) -> float | None:
    """None for what no gauge of these can be."""
    return value if value is not None and isfinite(value) and 0 <= value <= MOST else None
