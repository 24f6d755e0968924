"""ASGI responses: JSON in one piece, and server-sent events that notice a client who left.

Plain ASGI rather than a framework's response classes: the streaming path runs once per token and shares the cores
with the kernels.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from forno.server.errors import describe
from forno.server.limits import App, Receive, Scope, Send
from forno.server.wire import ErrorResponse

_encoder = msgspec.json.Encoder()


class Body:
    """A complete response."""

    def __init__(self, content: bytes, media: str = "application/json", status: int = 200, headers: Mapping[str, str] = {}):
        self.content, self.media, self.status, self.headers = content, media, status, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = [(b"content-type", self.media.encode()), (b"content-length", str(len(self.content)).encode())]
        head += [(k.encode(), v.encode()) for k, v in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": head})
        await send({"type": "http.response.body", "body": self.content})


def json(value: Any, status: int = 200, headers: Mapping[str, str] = {}) -> Body:
    return Body(encoded(value), status=status, headers=headers)


def encoded(value: Any) -> bytes:
    return _encoder.encode(value)


EVENT_HEAD = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Deferred:
    """A response that is still being computed; the work is cancelled when the client leaves."""

    def __init__(self, work: Coroutine[Any, Any, App]) -> None:
        self.work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await until_disconnect(receive, self.work)
        if response is not None:
            await response(scope, receive, send)


class Events:
    """Server-sent events from encoded chunks. The iterator is closed when the client leaves.

    The response starts with the first chunk, so that an error before it still gets its status; one after it is sent
    as an event, since a client must never take a part for the whole.
    """

    def __init__(self, chunks: AsyncGenerator[bytes]) -> None:
        self.chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self.chunks):
            first = await anext(self.chunks)
            await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEAD})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            try:
                async for chunk in self.chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except Exception as error:
                body = describe(error)[1]
                await send({"type": "http.response.body", "body": event(ErrorResponse(error=body)) + DONE, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


async def until_disconnect(receive: Receive, work: Awaitable[Any]) -> Any:
    """Await ``work``; if the client leaves first, cancel it and return None."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    gone.add_done_callback(lambda _: task.cancel())
    try:
        return await task
    except asyncio.CancelledError:
        if gone.done():
            return None
        raise
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def event(value: Any) -> bytes:
    """One server-sent event holding ``value`` as JSON."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def with_field(events: bytes, name: str, value: Any) -> bytes:
    """``events`` with one more field in the last of them, whose value is a JSON object that is not empty."""
    return b'%b,"%b":%b}\n\n' % (events[:-3], name.encode(), _encoder.encode(value))


DONE = b"data: [DONE]\n\n"


class ChunkTemplate:
    """The constant part of a stream's events, encoded once; per token only the delta is."""

    def __init__(self, kind: str, id: str, created: int, model: str) -> None:
        head = _encoder.encode({"id": id, "object": kind, "created": created, "model": model})
        self._head = b"data: " + head[:-1] + b',"choices":['

    def content(self, index: int, text: str) -> bytes:
        """A chat delta that carries nothing but text: the common case."""
        return b'%b{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}]}\n\n' % (
            self._head,
            index,
            _encoder.encode(text),
        )

    def text(self, index: int, text: str) -> bytes:
        """A completion delta that carries nothing but text."""
        return b'%b{"index":%d,"text":%b,"logprobs":null,"finish_reason":null}]}\n\n' % (
            self._head,
            index,
            _encoder.encode(text),
        )

    def choice(self, value: Any, extra: Mapping[str, Any] = {}) -> bytes:
        """Any choice object, and fields beside ``choices``."""
        rest = b"," + _encoder.encode(extra)[1:] if extra else b"}"
        return self._head + _encoder.encode(value) + b"]" + rest + b"\n\n"

    def tail(self, usage: Any, timings: Any) -> bytes:
        """The last chunk of a stream with ``include_usage``: no choices, the usage."""
        return self._head + b'],"usage":' + _encoder.encode(usage) + b',"timings":' + _encoder.encode(timings) + b"}\n\n"
