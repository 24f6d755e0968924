"""Whatever a server does becomes a record: against one on loopback that sends the bytes it is told to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from forno.bench import client as client_module
from forno.bench.client import Client, Target, Timeouts, open_client
from forno.bench.records import RequestRecord
from forno.bench.workload import Call
from tests.bench.scripted import (
    ANSWER,
    DONE,
    END,
    FINISH,
    HEAD,
    Request,
    Script,
    Send,
    delta,
    event,
    piece,
    reply,
    serving,
    stream,
    usage,
    whole,
)

CALL = Call(2, ({"role": "user", "content": "What is an oven?"},))


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def later(self, seconds: float) -> Callable[[], None]:
        def pass_time() -> None:
            self.now += seconds

        return pass_time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(client_module, "TICK", 0.001)
    return Clock()


def record(index: int = 0) -> RequestRecord:
    return RequestRecord(index=index, scheduled=0.0)


async def ask(script: Script, clock: Clock, **target: Any) -> tuple[RequestRecord, str | None]:
    """One call to a server with that script."""
    made = record()
    async with serving(script) as server, open_client(Target(server.url, "tiny", **target), clock) as client:
        text = await client.ask(CALL, made)
        assert client.in_flight == 0
    return made, text


def always(data: bytes, **more: Any) -> Script:
    return lambda request: Send(data, **more)


async def test_a_whole_answer(clock: Clock) -> None:
    made, text = await ask(whole, clock)
    assert (text, made.error, made.error_kind) == ("Good bread", None, None)
    assert (made.prompt_tokens, made.output_tokens, made.cached_tokens, made.queue_seconds) == (10, 2, 4, 0.003)
    assert (made.sent, made.first, made.last, made.finish_reason, len(made.gaps)) == (0.0, 0.0, 0.0, "length", 1)


async def test_what_is_sent(clock: Clock) -> None:
    fields = {"temperature": 0.0, "ignore_eos": True}
    async with serving() as server:
        target = Target(server.url, "tiny", api_key="secret", fields=fields)
        async with open_client(target, clock) as client:
            await client.ask(replace(CALL, extra={"seed": 7}), record())
            await client.ask(Call(3, prompt="An oven"), record())
        plain = replace(target, completions=True, include_usage=False, usage_promised=False)
        async with open_client(plain, clock) as client:
            await client.ask(Call(3, ({"role": "system", "content": "a"}, {"role": "user", "content": "b"})), record())
        chat, completion, flat = server.requests
    common = {"model": "tiny", "stream": True, **fields}
    with_usage = {"stream_options": {"include_usage": True}}
    assert (chat.path, chat.body) == (
        "/v1/chat/completions",
        {**common, **with_usage, "max_tokens": 2, "messages": list(CALL.messages), "seed": 7},
    )
    assert chat.headers["authorization"] == "Bearer secret"
    assert (completion.path, completion.body) == (
        "/v1/completions",
        {**common, **with_usage, "max_tokens": 3, "prompt": "An oven"},
    )
    assert (flat.path, flat.body) == ("/v1/completions", {**common, "max_tokens": 3, "prompt": "a\n\nb"})
    assert "secret" not in repr(target)


BROKEN: dict[str, tuple[Send, str, str]] = {
    "a refusal": (
        Send(reply({"error": {"message": "no such field"}}, "400 Bad Request")),
        "status",
        "400 Bad Request: no such",
    ),
    "a crash": (Send(reply(b"<html>oh\nno", "500 Internal Server Error", "text/html")), "status", "500 .*: <html>oh no"),
    "a full queue": (Send(reply({"detail": "full"}, "429 Too Many Requests")), "status", "429 Too Many Requests: full"),
    "a redirection": (Send(b"HTTP/1.1 307 x\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"), "status", "307"),
    "an unknown status": (Send(b"HTTP/1.1 599 x\r\ncontent-length: 0\r\n\r\n"), "status", "599"),
    "no HTTP": (Send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", close=True), "bad_stream", "not valid HTTP: "),
    "a binary mess": (Send(bytes(range(256)) * 4, close=True), "bad_stream", "not valid HTTP: "),
    "endless headers": (Send(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 50_000, close=True), "bad_stream", "not valid HTTP: "),
    "no answer": (Send(close=True), "dropped", "connection was lost"),
    "half of a head": (Send(b"HTTP/1.1 200 OK\r\ncont", close=True), "dropped", "connection was lost"),
    "a cut body": (Send(HEAD + piece(delta("a")), close=True), "dropped", "connection was lost"),
    "a cut piece": (Send(HEAD + b"ff\r\ndata:", close=True), "dropped", "connection was lost"),
    "no chunked body": (Send(HEAD + b"zz\r\n", close=True), "bad_stream|dropped", ""),
    "no stream": (Send(reply({"choices": []})), "bad_stream", "application/json, not text/event-stream"),
    "nothing": (Send(stream()), "bad_stream", "ended without .DONE., after 0 chunks"),
    "no end": (Send(stream(*ANSWER[:-1])), "bad_stream", "ended without .DONE., after 2 chunks"),
    "an end within an event": (Send(stream(delta("a"), b'data: {"cho')), "bad_stream", "ended within an event"),
    "broken JSON": (Send(stream(delta("a"), b"data: {oops}\n\n", DONE)), "bad_stream", "no chunk.*: {oops}"),
    "bad UTF-8": (Send(stream(b'data: {"choices":[{"text":"\xff"}]}\n\n', DONE)), "bad_stream", "no chunk"),
    "no usage": (Send(stream(delta("a"), FINISH, DONE)), "bad_stream", "no usage came"),
    "wrong usage": (Send(stream(delta("a"), usage(completion_tokens=0), DONE)), "bad_stream", "0 output tokens"),
    "an error": (Send(stream(delta("a"), event({"error": {"message": "NaN"}}), DONE)), "server_error", "NaN"),
    "an empty answer": (Send(stream(FINISH, usage(), DONE)), "empty", "no text in the answer .2 tokens"),
    "an endless line": (Send(HEAD + piece(b"x" * (5 << 20)), hang=True), "bad_stream", "longer than"),
    "a huge event": (Send(HEAD + 80 * piece(b"data: " + b"x" * (64 << 10) + b"\n"), hang=True), "bad_stream", "longer than"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_broken_is_named(name: str, clock: Clock) -> None:
    send, kind, message = BROKEN[name]
    made, text = await ask(lambda request: send, clock)
    assert text is None
    assert made.error_kind in kind.split("|")
    assert made.error
    assert re.search(message, made.error)
    assert "\n" not in made.error
    assert len(made.error) < 300


async def test_what_came_before_an_error_is_kept(clock: Clock) -> None:
    made, _ = await ask(always(HEAD + piece(delta("a")) + piece(delta("b")), close=True), clock)
    assert (made.first, len(made.gaps), made.output_tokens) == (0.0, 1, 2)


WAITS = Timeouts(connect=5, first=10, stall=20, total=50)
SILENT: dict[str, tuple[bytes, float, str | None]] = {
    "no answer yet": (b"", 9, None),
    "no answer": (b"", 11, "no content 10 s after it was sent"),
    "a head alone": (HEAD, 11, "no content 10 s after it was sent"),
    "signs of life alone": (HEAD + piece(b": alive\n\n") * 9, 11, "no content 10 s after it was sent"),
    "a beginning": (HEAD + piece(delta("a")), 21, "no content for 20 s in the middle"),
    "no end": (HEAD + piece(delta("a")), 51, "not over 50 s after it was sent"),
}


@pytest.mark.parametrize("name", SILENT)
async def test_silence_ends(name: str, clock: Clock) -> None:
    """The server's own hand moves the clock, once the client has what it gets."""
    data, seconds, message = SILENT[name]
    received = asyncio.Event()

    async def script(request: Request) -> Send:
        received.set()
        return Send(data, hang=True)

    made = record()
    async with serving(script) as server, open_client(Target(server.url, "tiny", timeouts=WAITS), clock) as client:
        asking = asyncio.create_task(client.ask(CALL, made))
        await received.wait()
        flight = next(iter(client._flights))
        while data.endswith(piece(delta("a"))) and not flight.streaming:
            await asyncio.sleep(0)
        clock.now += seconds
        if message is None:
            await asyncio.sleep(0.01)
            assert not asking.done()
            asking.cancel()
            await asyncio.wait([asking])
            assert made.error_kind == "cancelled"
        else:
            assert await asking is None
            assert (made.error_kind, made.ended) == ("timeout", seconds)
            assert message in (made.error or "")


async def test_nobody_listens(clock: Clock) -> None:
    async with serving() as server:
        url = server.url
    made = record()
    async with open_client(Target(url, "tiny"), clock) as client:
        assert await client.ask(CALL, made) is None
    assert made.error_kind == "connect"


@pytest.mark.parametrize("url", ["http://", "http://127.0.0.1:99999", "ftp://x", "http://[::"])
async def test_addresses_that_are_none(url: str, clock: Clock) -> None:
    made = record()
    async with open_client(Target(url, "tiny"), clock) as client:
        assert await client.ask(CALL, made) is None
    assert made.error_kind in ("connect", "bad_stream")
    assert made.error


async def test_after_done_nothing_can_go_wrong(clock: Clock) -> None:
    """The answer is whole: a body that does not end costs the connection only."""
    made = record()
    endless = always(HEAD + b"".join(map(piece, ANSWER)), hang=True)
    async with serving(endless) as server, open_client(Target(server.url, "tiny"), clock) as client:
        asking = asyncio.create_task(client.ask(CALL, made))
        while not asking.done():
            clock.now += 0.01
            await asyncio.sleep(0)
    assert (asking.result(), made.error) == ("Good bread", None)
    assert made.ended <= (made.last or 0) + 0.001


@pytest.mark.parametrize(("keep_alive", "connections"), [(True, {1}), (False, {1, 2, 3})])
async def test_connections(keep_alive: bool, connections: set[int], clock: Clock) -> None:
    async with serving() as server, open_client(Target(server.url, "tiny", keep_alive=keep_alive), clock) as client:
        for _ in range(3):
            assert await client.ask(CALL, record()) == "Good bread"
        assert {request.connection for request in server.requests} == connections


async def test_events_in_any_pieces(clock: Clock) -> None:
    body = b"".join(ANSWER)
    for size in (1, 7, 100):
        pieces = b"".join(piece(body[i : i + size]) for i in range(0, len(body), size))
        made, text = await ask(always(HEAD + pieces + END), clock)
        assert (text, made.output_tokens, len(made.gaps)) == ("Good bread", 2, 1)


async def test_a_cancelled_request_says_so(clock: Clock) -> None:
    async with serving(always(b"", hang=True)) as server, open_client(Target(server.url, "tiny"), clock) as client:
        made = record()
        task = asyncio.create_task(client.ask(CALL, made))
        while not server.requests:
            await asyncio.sleep(0)
        await _cancelled(client, task)
    assert made.error_kind == "cancelled"


async def _cancelled(client: Client, task: asyncio.Task[Any]) -> None:
    assert client.in_flight == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.in_flight == 0
