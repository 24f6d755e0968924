"""A streaming client for OpenAI-compatible servers; whatever happens becomes a record. It knows HTTP, no load and no metric.

It shares the machine with the server it measures: a token costs it a few microseconds, and nothing is armed or logged per
token. Deadlines are therefore kept by one watchdog for all requests, a quarter of a second coarse.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from forno.bench.answer import Answer, ServerError, message_of, shown
from forno.bench.extra import need
from forno.bench.records import RequestRecord
from forno.bench.sse import BadStream, EventParser

if TYPE_CHECKING:
    import aiohttp

    from forno.bench.workload import Call

TICK = 0.25
"""Seconds between looks at the deadlines."""
LINGER = 1.0
"""Seconds that a response has to end after ``[DONE]``, before its connection is given up."""
MAX_ERROR_BODY = 64 << 10
KEEPALIVE = 4.0
"""Seconds that an unused connection is kept: servers close theirs after 5 or more, and a request must not meet that."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds after which a request has failed."""

    connect: float = 10.0
    first: float = 120.0
    """From sending to the first content."""
    stall: float = 60.0
    """Between chunks with content."""
    total: float = 600.0


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and what every request to it has in common."""

    url: str
    """Base without ``/v1``."""
    model: str
    api_key: str = field(default="", repr=False)
    include_usage: bool = True
    usage_promised: bool = True
    """Whether an answer without usage is a broken one."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every request: ``temperature``, ``ignore_eos`` and others."""
    completions: bool = False
    """Send chats as completions of their messages' text, for models without a chat template."""
    timeouts: Timeouts = Timeouts()
    keep_alive: bool = True

    def body(self, call: Call) -> tuple[str, bytes]:
        """Path and JSON of a call."""
        chat = call.prompt is None and not self.completions
        body: dict[str, Any] = {"model": self.model, "max_tokens": call.max_tokens, "stream": True}
        if chat:
            body["messages"] = call.messages
        else:
            body["prompt"] = call.prompt if call.prompt is not None else as_text(call.messages)
        if self.include_usage:
            body["stream_options"] = {"include_usage": True}
        return "/v1/chat/completions" if chat else "/v1/completions", msgspec.json.encode(body | {**self.fields, **call.extra})


def as_text(messages: Iterable[Mapping[str, Any]]) -> str:
    """Messages as plain text, for a completion."""
    return "\n\n".join(str(message["content"]) for message in messages)


class Client:
    """Sends calls to one target. Times are what ``clock`` says, seconds since the run's start."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, clock: Callable[[], float]) -> None:
        self.target, self.clock = target, clock
        self._session = session
        self._flights: set[_Flight] = set()

    @property
    def in_flight(self) -> int:
        """Requests sent and not ended."""
        return len(self._flights)

    async def ask(self, call: Call, record: RequestRecord) -> str | None:
        """Send one call, fill ``record``; returns the answer's text, or None if it failed. Raises only ``CancelledError``."""
        path, body = self.target.body(call)
        answer, flight = Answer(record), self._depart()
        record.sent = round(flight.sent, 6)
        try:
            await self._exchange(self.target.url + path, body, answer, flight)
        except asyncio.CancelledError:
            if not flight.expired:
                record.error, record.error_kind = "cancelled by the client", "cancelled"
                raise
            flight.task.uncancel()
            if not answer.done:
                record.error, record.error_kind = flight.expired, "timeout"
        except Exception as error:  # whatever a server does is a result, never an end of the run
            if not answer.done:
                record.error_kind, record.error = described(error, len(answer.text))
        finally:
            self._flights.discard(flight)
            record.ended = round(flight.done_at or self.clock(), 6)
        return self._judged(answer)

    def _judged(self, answer: Answer) -> str | None:
        """Settle the record; the text if all is well."""
        record = answer.record
        try:
            answer.finish(self.target.usage_promised)
            if record.error is None and record.first is None:
                record.error, record.error_kind = f"no text in the answer ({record.output_tokens} tokens by usage)", "empty"
        except BadStream as error:
            record.error, record.error_kind = record.error or str(error), record.error_kind or "bad_stream"
        return "".join(answer.text) if record.error is None else None

    def _depart(self) -> _Flight:
        task, now, timeouts = asyncio.current_task(), self.clock(), self.target.timeouts
        assert task is not None
        flight = _Flight(task, now, now + timeouts.first, now + timeouts.total)
        self._flights.add(flight)
        return flight

    async def _exchange(self, url: str, body: bytes, answer: Answer, flight: _Flight) -> None:
        async with self._session.post(url, data=body, allow_redirects=False) as response:
            if response.status != HTTPStatus.OK:
                where = response.headers.get("location", "")
                raise _Refused(response.status, await read_some(response.content, MAX_ERROR_BODY), where)
            if response.content_type != "text/event-stream":
                start = shown(await response.content.read(MAX_ERROR_BODY))
                raise BadStream(f"the answer is {response.content_type}, not text/event-stream: {start}")
            if (coding := response.headers.get("content-encoding", "identity")) != "identity":
                raise BadStream(f"the stream is compressed ({shown(coding)}), though only plain text was asked for")
            await self._read(response.content, answer, flight)

    async def _read(self, content: aiohttp.StreamReader, answer: Answer, flight: _Flight) -> None:
        parser, clock, stall = EventParser(), self.clock, self.target.timeouts.stall
        while data := await content.readany():
            if answer.done:
                continue  # reading to the end lets the connection be used again
            now = clock()
            for event in parser.feed(data):
                if answer.take(event, now):
                    flight.deadline = now + stall
                    flight.streaming = True
            if answer.done:
                flight.done_at, flight.deadline = now, now + LINGER
        if not answer.done:
            where = "within an event" if parser.incomplete else "without [DONE]"
            raise BadStream(f"the stream ended {where}, after {len(answer.text)} chunks with content")

    async def watch(self) -> None:
        """Keep the deadlines, until cancelled."""
        while True:
            await asyncio.sleep(TICK)
            now = self.clock()
            for flight in [f for f in self._flights if now > min(f.deadline, f.last_moment) and not f.expired]:
                flight.expire(now, self.target.timeouts)


@dataclass(slots=True, eq=False)
class _Flight:
    """A request under way."""

    task: asyncio.Task[Any]
    sent: float
    deadline: float
    last_moment: float
    streaming: bool = False
    done_at: float = 0.0
    expired: str = ""

    def expire(self, now: float, timeouts: Timeouts) -> None:
        if now > self.last_moment:
            self.expired = f"not over {timeouts.total:g} s after it was sent"
        elif self.streaming:
            self.expired = f"no content for {timeouts.stall:g} s in the middle of the answer"
        else:
            self.expired = f"no content {timeouts.first:g} s after it was sent"
        self.task.cancel()


class _Refused(Exception):
    """A status other than 200."""

    def __init__(self, status: int, body: bytes, where: str = "") -> None:
        try:
            text = message_of(msgspec.json.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError):
            text = shown(body)
        text = f"it redirects to {shown(where)}: give that server's --url" if where else text
        phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
        super().__init__(f"{status} {phrase}: {text}" if text else f"{status} {phrase}")


def described(error: Exception, chunks: int = 0) -> tuple[str, str]:
    """``error_kind`` and one line; ``chunks`` with content had come."""
    import aiohttp
    from aiohttp.http_exceptions import HttpProcessingError

    kinds: list[tuple[Any, str]] = [
        (_Refused, "status"),
        (ServerError, "server_error"),
        (BadStream, "bad_stream"),
        ((aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL), "connect"),
        ((aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError, ConnectionError), "dropped"),
    ]
    kind = next((name for types, name in kinds if isinstance(error, types)), "bad_stream")
    if kind == "dropped":
        return kind, f"the connection was lost after {chunks} chunks with content" if chunks else "the connection was lost"
    text = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError):
        text = f"cannot connect to {error.host}:{error.port}: {error.os_error.strerror or error.os_error}"
    elif isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):  # whose status is not the server's
        text = f"not valid HTTP: {error.message}"
    return kind, shown(text)


async def read_some(content: aiohttp.StreamReader, limit: int) -> bytes:
    """A body, or as much of it as is worth looking at."""
    found = b""
    while len(found) < limit and (data := await content.readany()):
        found += data
    return found[:limit]


@asynccontextmanager
async def open_client(target: Target, clock: Callable[[], float]) -> AsyncIterator[Client]:
    """A client with its own connections and watchdog. Raises ``ConfigError`` without aiohttp."""
    async with open_session(target) as session:
        client = Client(session, target, clock)
        watchdog = asyncio.create_task(client.watch())
        try:
            yield client
        finally:
            watchdog.cancel()


def open_session(target: Target) -> aiohttp.ClientSession:
    """Connections without a limit of their own, so that an open loop is never held back here."""
    need("aiohttp")
    import aiohttp

    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    if target.api_key:
        headers["authorization"] = f"Bearer {target.api_key}"
    idle = {"keepalive_timeout": KEEPALIVE} if target.keep_alive else {"force_close": True}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, **idle),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=target.timeouts.connect),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        auto_decompress=False,
    )
