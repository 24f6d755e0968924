"""Closed-loop streaming load on any OpenAI-compatible server, for comparing engines in one run.

    python -m benchmarks.loadgen --url http://127.0.0.1:8000 --model M --workload chat -c 1,8,32 [-n 64] [--max-tokens 64]

Prints one JSON line per number of clients: output tok/s, TTFT and ITL in ms, errors. A client asks, reads its answer to
the end, and asks again. Prompts are cut from the interpreter's own pydoc topics: real English, the same for every engine.
Knows HTTP only, nothing of forno; needs aiohttp.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import aiohttp

AMONG = "among"
"""Chat, and one long prompt that arrives once all clients read their answers: what it does to them."""
WORKLOADS = ("chat", "rag", "turns", "long", AMONG)
TURNS = 5
"""Questions of one conversation in ``turns``."""
DOCUMENTS = 4
"""Prefixes that the questions of ``rag`` share."""
EARLY = 8
"""Tokens that each client of ``among`` has read, on average, when the long prompt arrives."""
TIMEOUT = 600
"""Seconds after which a request counts as an error."""
_WORDS = "\n".join(topics[name] for name in sorted(topics)).split()

Messages = list[dict[str, str]]


def span(rng: random.Random, words: int) -> str:
    """That many consecutive words from a random place in the text."""
    start = rng.randrange(len(_WORDS) - words)
    return " ".join(_WORDS[start : start + words])


def prompts(workload: str, count: int, seed: int) -> list[Messages]:
    """``count`` conversations of one question each: short (chat, among), behind a shared document (rag) or long."""
    rng = random.Random(seed)
    if workload in ("chat", AMONG):
        return [[_user("Explain this to a beginner: " + span(rng, rng.randint(20, 120)))] for _ in range(count)]
    if workload == "rag":
        documents = [span(random.Random(1000 + i), 900) for i in range(DOCUMENTS)]
        systems = ["Answer only from the document.\n" + text for text in documents]
        questions = (f"Question {i}: what does it say about {span(rng, 4)}?" for i in range(count))
        return [[_message("system", systems[i % DOCUMENTS]), _user(text)] for i, text in enumerate(questions)]
    assert workload == "long", workload
    return [[_user("Summarize:\n" + span(rng, 2200))] for _ in range(count)]


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _user(content: str) -> dict[str, str]:
    return _message("user", content)


@dataclass(slots=True)
class Record:
    """What the clients saw: seconds, one entry per request (``ttft``, ``e2e``) or per token after the first (``itl``)."""

    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)
    tokens: int = 0
    errors: int = 0
    last_error: str = ""

    def fail(self, why: str) -> None:
        self.errors += 1
        self.last_error = why[:200]

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, by the server's count, over all answers; None without one."""
        later = self.tokens - len(self.ttft)
        return sum(self.itl) / later if later > 0 else None

    def summary(self, wall: float) -> dict[str, Any]:
        """Rates per second, latencies in ms (None without a sample)."""
        wanted = (("ttft", self.ttft, (50, 95)), ("itl", self.itl, (50, 95, 99)), ("e2e", self.e2e, (50,)))
        return {
            "wall": round(wall, 2),
            "out_tok_s": round(self.tokens / wall, 1),
            "tok": self.tokens,
            "err": self.errors,
            "ttft_mean": milliseconds(statistics.fmean(self.ttft) if self.ttft else None, 3),
            "tpot_mean": milliseconds(self.tpot, 3),
            **{f"{name}_p{p}": milliseconds(percentile(values, p / 100)) for name, values, ps in wanted for p in ps},
            **({"lasterr": self.last_error} if self.errors else {}),
        }


def percentile(values: Iterable[float], q: float) -> float | None:
    """The nearest rank above a share ``q`` of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else None


def milliseconds(seconds: float | None, digits: int = 1) -> float | None:
    return None if seconds is None else round(1000 * seconds, digits)


@dataclass(frozen=True, slots=True)
class Client:
    """One server, as all clients of a run use it."""

    session: aiohttp.ClientSession
    url: str
    model: str
    max_tokens: int
    record: Record

    async def ask(self, messages: Messages) -> str | None:
        """Stream one answer and note its times; None if it failed."""
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": self.max_tokens,
            "stream": True,
            "temperature": 0,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
        started = time.perf_counter()
        try:
            async with self.session.post(self.url + "/v1/chat/completions", json=body) as response:
                if response.status != 200:
                    self.record.fail(await response.text())
                    return None
                return await self._read(response.content, started)
        except Exception as error:  # whatever a server does wrong is a result, not an end of the run
            self.record.fail(repr(error))
            return None

    async def _read(self, lines: aiohttp.StreamReader, started: float) -> str:
        last: float | None = None
        tokens, text = 0, []
        async for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                break
            event = json.loads(data)
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            if content := _content(event):
                now = time.perf_counter()
                if last is None:
                    self.record.ttft.append(now - started)
                else:
                    self.record.itl.append(now - last)
                last = now
                text.append(content)
        self.record.tokens += tokens
        self.record.e2e.append(time.perf_counter() - started)
        return "".join(text)

    async def converse(self, seed: int) -> None:
        """A conversation of ``TURNS`` questions, each after all earlier answers."""
        rng = random.Random(seed)
        messages = [_message("system", "You are a patient tutor. " + span(random.Random(7), 150))]
        for turn in range(TURNS):
            messages.append(_user(f"Turn {turn}. About: {span(rng, 40)}"))
            answer = await self.ask(messages)
            if answer is None:
                return
            messages.append(_message("assistant", answer))


@dataclass(frozen=True, slots=True)
class Interruption:
    """The long prompt of ``among``."""

    client: Client
    others: Record
    enough: int
    """Tokens that the others have read when it arrives."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the others are done, however little they read."""

    async def ask(self, seed: int) -> None:
        while len(self.others.itl) < self.enough and not self.over.is_set():
            await asyncio.sleep(0.001)
        await self.client.ask(prompts("long", 1, seed)[0])


def _content(event: dict[str, Any]) -> str | None:
    choices = event.get("choices") or [{}]
    return (choices[0].get("delta") or {}).get("content")


def jobs_for(client: Client, workload: str | Path, count: int, seed: int, clients: int) -> list[Callable[[], Awaitable[Any]]]:
    """What the clients have to do, in order; a path is a file of JSON lines with ``messages``, all of which are asked.
    Otherwise, other numbers of clients get other prompts, so no cache helps the next run."""
    if workload == "turns":
        return [partial(client.converse, seed * 7919 + clients * 100 + i) for i in range(max(4, count // 4))]
    if isinstance(workload, Path):
        return [partial(client.ask, json.loads(line)["messages"]) for line in workload.read_text().splitlines()]
    return [partial(client.ask, messages) for messages in prompts(workload, count, seed * 7919 + clients)]


async def run(options: argparse.Namespace, clients: int) -> dict[str, Any]:
    """Load the server with that many clients until all jobs are done."""
    record, workload = Record(), options.prompts or options.workload
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=TIMEOUT)) as session:
        client = Client(session, options.url, options.model, options.max_tokens, record)
        jobs = iter(jobs_for(client, workload, options.n or max(8, clients * 3), options.seed, clients))

        async def work() -> None:
            for job in jobs:
                await job()

        result: dict[str, Any] = {"label": options.label, "workload": str(workload), "c": clients}
        started = time.perf_counter()
        if workload != AMONG:
            await asyncio.gather(*(work() for _ in range(clients)))
            return result | record.summary(time.perf_counter() - started)
        long = Interruption(replace(client, max_tokens=1, record=Record()), record, EARLY * clients)
        arrival = asyncio.create_task(long.ask(options.seed))
        await asyncio.gather(*(work() for _ in range(clients)))
        wall = time.perf_counter() - started
        long.over.set()
        await arrival
    record.errors += long.client.record.errors
    return result | record.summary(wall) | {"long_ttft": milliseconds(percentile(long.client.record.ttft, 0.5))}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Closed-loop streaming load on an OpenAI-compatible server.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="m")
    parser.add_argument("--workload", default="chat", choices=WORKLOADS)
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSON lines with messages, asked instead of a workload")
    parser.add_argument("-c", default="1,8,32", metavar="CLIENTS", help="numbers of clients, comma-separated, one run each")
    parser.add_argument("-n", type=int, default=0, help="requests per run; 0: three per client, at least 8")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--label", default="", help="repeated in the output")
    options = parser.parse_args(arguments)
    for clients in options.c.split(","):
        print(json.dumps(asyncio.run(run(options, int(clients)))), flush=True)


if __name__ == "__main__":
    main()
