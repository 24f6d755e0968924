"""Whether explanations add up: random requests under load, each held against what its client measured.

    python -m benchmarks.explained [--model MODEL] [--requests 200] [--clients 16] [--seed 0]

Clients keep connections open and send requests of random lengths, streamed or not, with shared prefixes, constraints and
several answers; some read slowly. For each, the parts of its explanation must sum to the server's time from its first byte
to the last, and that must be the client's time within 2 %, or within a tick of 4 ms: what a process waits for its core is
not told more finely. Prints where the difference lies and ends in one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.servers import MODEL, free_port, running
from forno.bench.statistics import percentiles
from forno.config import DEFAULT_MODEL
from forno.server.protocol import unread_seconds

TOLERANCE = 0.02
TICK = 0.004
"""Seconds below which the system does not tell how long bytes lay in a socket."""
WORDS = ("oven", "bread", "slowly", "while", "rain", "falls", "on", "an", "old", "roof", "above", "seven", "quiet", "streets")
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "bread",
        "schema": {
            "type": "object",
            "properties": {"bread": {"enum": ["rye", "wheat"]}, "minutes": {"type": "integer", "minimum": 1, "maximum": 99}},
            "required": ["bread", "minutes"],
            "additionalProperties": False,
        },
    },
}


@dataclass
class Seen:
    """One request as its client saw it; times on the system's monotonic clock, which the server reads too."""

    id: str
    sent: float
    ended: float
    lag: float
    """How long the last bytes had lain in the client's socket when it read them: its own delay, at least."""
    explained: list[dict[str, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Without the client's own delay, which no server can know."""
        return self.ended - self.lag - self.sent

    @property
    def server(self) -> float:
        """Of several answers, all end with the response."""
        return max(float(r["seconds"]) for r in self.explained)

    @property
    def difference(self) -> float:
        """What the client measured beyond what the server knows of, as a share."""
        return (self.seconds - self.server) / self.seconds

    @property
    def before(self) -> float:
        """From the client's call to the first byte that the server read."""
        return float(self.explained[0]["start"]) - self.sent

    @property
    def after(self) -> float:
        """From the last byte that the server sent to when the client had it."""
        return self.seconds - self.server - self.before


def body_of(rng: random.Random, index: int) -> dict[str, Any]:
    """A random request."""
    shared = " ".join(WORDS * rng.choice([0, 0, 6, 12]))
    own = " ".join(rng.choices(WORDS, k=rng.choice([8, 40, 120, 400])))
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{shared} {own}".strip()}],
        "max_tokens": rng.choice([1, 8, 32, 96]),
        "stream": rng.random() < 0.7,
        "request_id": f"random-{index}",
        "seed": index,
    }
    if rng.random() < 0.15:
        body["n"] = rng.choice([2, 3])
    if rng.random() < 0.1:
        body["response_format"] = SCHEMA
    return body


class Connection:
    """One kept-alive HTTP/1.1 connection, read with as little between it and the clock as there can be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))

    async def post(self, body: dict[str, Any]) -> tuple[float, float, float]:
        """Send ``body``, read the whole answer; returns when it was sent, when the last byte was read, and how long that
        had lain in the client's socket by then."""
        content = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
        sent = time.monotonic()
        self.writer.write(head.encode() + content)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        length = next((int(line[15:]) for line in answer.lower().split(b"\r\n") if line[:15] == b"content-length:"), None)
        if length is not None:
            await self.reader.readexactly(length)
        while length is None and await self._chunk():
            pass
        ended = time.monotonic()
        return sent, ended, unread_seconds(self.writer.get_extra_info("socket"))

    async def _chunk(self) -> int:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        await self.reader.readexactly(size + 2)
        return size

    async def get(self, path: str) -> Any:
        self.writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        answer = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = next(int(line[15:]) for line in answer.split(b"\r\n") if line[:15] == b"content-length:")
        return json.loads(await self.reader.readexactly(length))


async def load(port: int, requests: int, clients: int, seed: int) -> list[Seen]:
    """Send them all, then have each explained."""
    rng = random.Random(seed)
    bodies = [body_of(rng, i) for i in range(requests)]
    todo = list(enumerate(bodies))
    found: list[Seen] = []

    async def client() -> None:
        connection = await Connection.open(port)
        while todo:
            _, body = todo.pop(0)
            sent, ended, lag = await connection.post(body)
            found.append(Seen(f"chatcmpl-{body['request_id']}", sent, ended, lag))

    await asyncio.gather(*[client() for _ in range(clients)])
    connection = await Connection.open(port)
    for seen in found:
        seen.explained = (await connection.get(f"/explain/{seen.id}"))["requests"]
    return found


def check(seen: Seen) -> list[str]:
    """What does not add up."""
    wrong = []
    for request in seen.explained:
        parts = sum(p["seconds"] for p in request["parts"])
        if abs(parts - request["seconds"]) > 1e-6:
            wrong.append(f"{request['id']}: parts sum to {parts}, not {request['seconds']}")
    if abs(seen.difference) > max(TOLERANCE, TICK / seen.seconds):
        wrong.append(
            f"{seen.id}: the client measured {1000 * seen.seconds:.2f} ms, the server {1000 * seen.server:.2f} "
            f"({1000 * seen.before:.2f} before, {1000 * seen.after:.2f} after)"
        )
    return wrong


def spread(values: list[float]) -> dict[str, float]:
    """Median, 99th percentile and largest."""
    return dict(zip(("p50", "p99", "max"), percentiles(values, (0.5, 0.99, 1.0)), strict=True))


def main() -> int:
    """Exit status 1 if anything does not add up."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    port = free_port()
    command = [sys.executable, "-m", "forno", "serve", "--model", args.model, "--port", str(port), "--served-model-name", MODEL]
    with running(command, port) as server:
        server.first_token()
        found = asyncio.run(load(port, args.requests, args.clients, args.seed))
    wrong = [line for seen in found for line in check(seen)]
    for name, unit, values in (
        ("before the first byte was read", "us", [1e6 * s.before for s in found]),
        ("after the last byte was sent", "us", [1e6 * s.after for s in found]),
        ("of the client itself", "us", [1e6 * s.lag for s in found]),
        ("difference", "%", [100 * s.difference for s in found]),
    ):
        print(f"{name:32}" + "".join(f"  {k} {v:8.2f} {unit}" for k, v in spread(values).items()))
    print(*wrong, sep="\n")
    beyond = sum(abs(s.difference) > TOLERANCE for s in found)
    print(f"{beyond} of {len(found)} differ by more than {TOLERANCE:.0%}; {len(wrong)} of them by more than a tick as well")
    summary = {
        "requests": len(found),
        "wrong": len(wrong),
        "beyond": beyond,
        "difference": spread([s.difference for s in found]),
    }
    print(json.dumps(summary))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
