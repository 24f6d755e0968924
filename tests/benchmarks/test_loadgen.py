"""The load client against a small server that streams as OpenAI's API does."""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks import loadgen
from benchmarks.loadgen import Record, percentile, prompts, run


def options(url: str, **changed: Any) -> argparse.Namespace:
    defaults: dict[str, Any] = {
        "url": url,
        "model": "m",
        "workload": "chat",
        "n": 6,
        "max_tokens": 3,
        "seed": 1,
        "label": "x",
        "prompts": None,
    }
    return argparse.Namespace(**{**defaults, **changed})


class Fake:
    """Streams ``max_tokens`` words, or fails as told; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.status = 200
        self.garbled = False

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        if self.status != 200:
            return web.Response(status=self.status, text="no")
        response = web.StreamResponse()
        await response.prepare(request)
        events: list[Any] = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
        events += [{"choices": [{"delta": {"content": f"w{i} "}}]} for i in range(body["max_tokens"])]
        events.append({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}})
        for event in events:
            await response.write(b"data: " + (b"{" if self.garbled else json.dumps(event).encode()) + b"\n\n")
        await response.write(b": a comment\n\ndata: [DONE]\n\n")
        return response


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[tuple[Fake, str]]:
    server = Fake()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.chat)
    async with TestServer(app) as running:
        yield server, str(running.make_url("")).rstrip("/")


async def test_tokens_and_latencies_are_counted(fake: tuple[Fake, str]) -> None:
    server, url = fake
    found = await run(options(url), 2)
    assert (found["label"], found["workload"], found["c"], found["tok"], found["err"]) == ("x", "chat", 2, 18, 0)
    assert found["out_tok_s"] > 0
    assert all(found[name] is not None for name in ("ttft_p50", "ttft_p95", "itl_p50", "itl_p95", "itl_p99", "e2e_p50"))
    assert all(body["ignore_eos"] and body["temperature"] == 0 and body["stream"] for body in server.asked)


async def test_a_conversation_carries_its_answers(fake: tuple[Fake, str]) -> None:
    server, url = fake
    await run(options(url, workload="turns", n=4), 1)
    assert len(server.asked) == 4 * loadgen.TURNS
    roles = [message["role"] for message in server.asked[loadgen.TURNS - 1]["messages"]]
    assert roles == ["system", *["user", "assistant"] * (loadgen.TURNS - 1), "user"]
    assert server.asked[1]["messages"][2]["content"] == "w0 w1 w2 "


@pytest.mark.parametrize(("status", "garbled", "said"), [(429, False, "no"), (200, True, "JSONDecodeError")])
async def test_failures_are_counted_not_raised(fake: tuple[Fake, str], status: int, garbled: bool, said: str) -> None:
    server, url = fake
    server.status, server.garbled = status, garbled
    found = await run(options(url), 3)
    assert found["err"] == 6
    assert said in found["lasterr"]


@pytest.mark.parametrize("workload", ["chat", "rag", "long"])
def test_prompts_depend_on_the_seed_only(workload: str) -> None:
    assert prompts(workload, 5, 3) == prompts(workload, 5, 3)
    assert prompts(workload, 5, 3) != prompts(workload, 5, 4)


def test_rag_questions_share_their_documents() -> None:
    systems = [messages[0]["content"] for messages in prompts("rag", 8, 1)]
    assert systems[:4] == systems[4:]
    assert len(set(systems)) == 4


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(i) for i in range(100)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([1.0], 0.99)) == (50.0, 99.0, 1.0)
    assert percentile([], 0.5) is None
    assert Record().summary(1.0)["itl_p99"] is None


async def test_a_long_prompt_arrives_among_the_others(fake: tuple[Fake, str]) -> None:
    server, url = fake
    found = await run(options(url, workload="among", n=2, max_tokens=20), 2)
    assert found["tok"] == 2 * 20, "the long prompt's token is not the others'"
    assert found["long_ttft"] is not None
    (long,) = [body for body in server.asked if body["max_tokens"] == 1]
    assert len(long["messages"][0]["content"]) > 5000
