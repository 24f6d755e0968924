"""Many clients at once for a while: random lengths, cancellations and disconnects. No error, no lost block, memory flat.

    FORNO_SOAK_SECONDS=180 FORNO_SOAK_MODEL=smollm2-135m python -m pytest -m slow tests/server/test_soak.py

The variables belong to this test; without them a tiny random model is used for ten seconds.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.server.harness import USER, Running, running

CLIENTS = 64
SECONDS = float(os.environ.get("FORNO_SOAK_SECONDS", "10"))
MODEL = os.environ.get("FORNO_SOAK_MODEL", "")
WARM_SHARE = 0.4
"""Of the time: after it every buffer has grown to its size, and memory must stay."""
GROWTH = 32 << 20
"""Bytes that the process may still grow by then: fragments, and caches of bounded size."""


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Client:
    """Asks again and again, and often leaves before the answer is whole."""

    def __init__(self, server: Running, http: httpx.AsyncClient, seed: int, counts: Counter[str]) -> None:
        self.server, self.http, self.random, self.counts = server, http, random.Random(seed), counts

    async def ask_until(self, end: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < end:
            choose = self.random.random()
            if choose < 0.6:
                await self.stream(leave_after=None)
            elif choose < 0.85:
                await self.stream(leave_after=self.random.randrange(0, 20))
            else:
                await self.whole(leave=self.random.random() < 0.5)

    def body(self) -> dict[str, object]:
        words = " ".join(self.random.choices(["oven", "bread", "the", "Rome", "höhe", "42"], k=self.random.randrange(1, 150)))
        body: dict[str, object] = {
            "model": self.server.model,
            "messages": [{"role": "system", "content": "You bake. " * 8}, *USER, {"role": "user", "content": words}],
            "max_tokens": self.random.randrange(1, 80),
            "temperature": self.random.choice([0, 0.7, 1.2]),
            "n": self.random.choice([1, 1, 1, 2]),
        }
        if self.random.random() < 0.1:
            body["response_format"] = {"type": "json_object"}
        if self.random.random() < 0.1:
            body |= {"logprobs": True, "top_logprobs": 3}
        return body

    async def stream(self, leave_after: int | None) -> None:
        body = {**self.body(), "stream": True}
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            seen, last = 0, ""
            async for line in response.aiter_lines():
                assert '"error"' not in line, line
                last = line or last
                seen += 1
                if seen == leave_after:
                    self.counts["left"] += 1
                    return
            assert last == "data: [DONE]"
            self.counts["streamed"] += 1

    async def whole(self, leave: bool) -> None:
        request = asyncio.ensure_future(self.http.post("/v1/chat/completions", json=self.body()))
        if leave:
            await asyncio.sleep(self.random.random() * 0.5)
            request.cancel()
        try:
            response = await request
        except asyncio.CancelledError:
            self.counts["cancelled"] += 1
            return
        assert response.status_code == 200, response.text
        self.counts["whole"] += 1


async def _soak(server: Running) -> tuple[Counter[str], int]:
    """What the clients did, and by how much memory grew after the warm share of the time."""
    counts: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:
        end = loop.time() + SECONDS
        clients = [asyncio.create_task(Client(server, http, i, counts).ask_until(end)) for i in range(CLIENTS)]
        await asyncio.sleep(SECONDS * WARM_SHARE)
        warm = resident_bytes()
        await asyncio.gather(*clients)
        grown = resident_bytes() - warm
    return counts, grown


@pytest.mark.slow
def test_many_clients(model_path: Path) -> None:
    with running(Path(MODEL) if MODEL else model_path, threads=0, blocks=300) as server:
        counts, grown = asyncio.run(_soak(server))
        server.wait_idle()
        stats = server.stats()
        print(
            f"\n{dict(counts)}; {stats.steps} steps, {stats.generation_tokens} tokens, {stats.preemptions} preemptions,"
            f" memory grew by {grown / (1 << 20):.1f} MiB"
        )
    assert min(counts[kind] for kind in ("streamed", "left", "whole", "cancelled")) > 0
    assert stats.finished["error"] == 0
    assert grown < GROWTH
