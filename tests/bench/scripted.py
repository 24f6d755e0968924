"""A server on loopback that sends exactly the bytes it is told to, right or wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def piece(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(text: str, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **more}]})


def usage(**changes: Any) -> bytes:
    return event({"choices": [], "usage": {**USAGE, **changes}, "timings": {"queue_ms": 3.0}})


FINISH = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
ANSWER = (delta("Good "), delta("bread"), FINISH, usage(), DONE)


def stream(*events: bytes) -> bytes:
    """A whole response."""
    return HEAD + b"".join(map(piece, events)) + END


def reply(value: Any, status: str = "200 OK", kind: str = "application/json") -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        status.encode(),
        kind.encode(),
        len(body),
        body,
    )


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int


@dataclass(slots=True)
class Send:
    """What a script answers: bytes, and what happens then."""

    data: bytes = b""
    close: bool = False
    """Close the connection after the bytes."""
    hang: bool = False
    """Keep it open and send nothing more."""
    then: Callable[[], None] = lambda: None


Script = Callable[[Request], Send | Awaitable[Send]]


@dataclass(slots=True)
class Server:
    port: int
    requests: list[Request] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def whole(request: Request) -> Send:
    """What a good server does."""
    if request.path == "/v1/models":
        return Send(reply({"data": [{"id": "tiny"}]}))
    if request.path in ("/v1/chat/completions", "/v1/completions") and request.body.get("stream"):
        return Send(stream(*ANSWER))
    if request.path == "/tokenize":
        text = request.body["messages"][0]["content"] if "messages" in request.body else request.body["prompt"]
        return Send(reply({"count": 5 + len(text.split())}))
    return Send(reply({"error": {"message": "no such page"}}, "404 Not Found"))


@asynccontextmanager
async def serving(script: Script = whole) -> AsyncIterator[Server]:
    """A server that answers each request as ``script`` says."""
    found: list[Server] = []
    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        number = len(writers)
        try:
            while (request := await _read(reader, number)) is not None:
                found[0].requests.append(request)
                answer = script(request)
                send = answer if isinstance(answer, Send) else await answer
                writer.write(send.data)
                await writer.drain()
                send.then()
                if send.close:
                    break
                if send.hang:
                    await reader.read()
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    found.append(Server(server.sockets[0].getsockname()[1]))
    try:
        yield found[0]
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def _read(reader: asyncio.StreamReader, connection: int) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if value}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(first.split()[1], headers, json.loads(raw) if raw else {}, connection)
