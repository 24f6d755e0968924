"""The server whose times are known: what it sends, and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from benchmarks.steady import MODEL, Steady

TTFT, TPOT = 500_000.0, 50_000.0
"""Seconds, of which none is slept: large beside whatever the test itself takes."""
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 4}


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times that the server asked to sleep, none of which it sleeps."""
    found: list[float] = []
    real: Callable[[float], Any] = asyncio.sleep

    async def sleep(seconds: float) -> None:
        found.append(seconds)
        await real(0)

    monkeypatch.setattr("benchmarks.steady.asyncio.sleep", sleep)
    return found


@pytest_asyncio.fixture
async def url() -> AsyncIterator[str]:
    async with TestServer(Steady(TTFT, TPOT).app()) as server:
        yield str(server.make_url("/"))


async def ask(url: str, **more: Any) -> list[str]:
    async with ClientSession() as session, session.post(f"{url}v1/chat/completions", json=BODY | more) as response:
        assert response.status == 200
        return (await response.text()).split("\n\n")


async def test_tokens_come_at_their_times_whatever_the_ones_before_did(url: str, slept: list[float]) -> None:
    lines = await ask(url, stream=True, stream_options={"include_usage": True})
    assert slept == pytest.approx([TTFT + i * TPOT for i in range(4)], abs=TPOT / 2)  # each from the request's start
    *tokens, usage, done, rest = lines
    contents = [json.loads(line.removeprefix("data: "))["choices"][0] for line in tokens]
    assert [choice["delta"]["content"] for choice in contents] == ["word "] * 4
    assert [choice["finish_reason"] for choice in contents] == [None, None, None, "length"]
    assert json.loads(usage.removeprefix("data: "))["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
    }
    assert (done, rest) == ("data: [DONE]", "")


async def test_a_whole_answer_takes_as_long_as_a_streamed_one(url: str, slept: list[float]) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "one two"}]}]
    answer = json.loads((await ask(url, messages=parts, max_completion_tokens=3))[0])
    assert slept == [TTFT + 2 * TPOT]
    assert answer["choices"][0]["message"]["content"].split() == ["word"] * 3
    assert answer["usage"]["prompt_tokens"] == 2


async def test_what_clients_ask_first(url: str) -> None:
    async with ClientSession() as session:
        async with session.get(f"{url}v1/models") as response:
            assert (await response.json())["data"][0]["id"] == MODEL
        async with session.get(f"{url}health") as response:
            assert response.status == 200
