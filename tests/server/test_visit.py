"""A visit's times: what is written into which record, and what counts as waiting for the client."""

from __future__ import annotations

from typing import Any

import pytest

from forno.observe.record import RequestRecord
from forno.observe.recorder import Recorder
from forno.observe.silent import Silent
from forno.request import Request
from forno.server.visit import BLOCKED, Visit


class Socket:
    """``send`` that takes as long as it is told."""

    def __init__(self) -> None:
        self.now = 10.0
        self.takes = 0.0
        self.sent: list[Any] = []

    def clock(self) -> float:
        return self.now

    async def send(self, message: Any) -> None:
        self.now += self.takes
        self.sent.append(message)


def visit(socket: Socket, *ids: str) -> tuple[Visit, list[RequestRecord]]:
    recorder = Recorder(socket.clock)
    records = [recorder.announce(Request(id, (1,), arrival=9.5)) for id in ids]
    found = Visit(recorder, socket.clock, begun=8.0)
    found.received, found.id = 9.0, "x"
    found.follow(ids)
    return found, records


async def test_times_of_a_response() -> None:
    socket = Socket()
    seen, (record,) = visit(socket, "x")
    assert (record.begun, record.received, record.tokenized, record.response) == (8.0, 9.0, 9.5, "")
    send = seen.sending(socket.send)
    assert not seen.started
    for text in ("head", "body", "end"):
        socket.now += 1.0
        await send(text)
    seen.close()
    assert seen.started
    assert socket.sent == ["head", "body", "end"]
    assert (record.first_sent, record.sent, record.late_send_seconds) == (11.0, 13.0, 0.0)


async def test_waiting_for_the_client() -> None:
    socket = Socket()
    seen, (early, late) = visit(socket, "x-0", "x-1")
    assert (early.response, late.response) == ("x", "x")
    send = seen.sending(socket.send)
    socket.takes = BLOCKED / 2
    await send("quick")
    assert early.late_send_seconds == 0.0
    early.finished = socket.now + 1.0  # while the client reads
    socket.takes = 4.0
    await send("slow")
    assert (early.late_send_seconds, late.late_send_seconds) == (pytest.approx(3.0), 0.0)
    early.finished = late.finished = 1.0
    await send("slow")
    assert (early.late_send_seconds, late.late_send_seconds) == (pytest.approx(7.0), pytest.approx(4.0))


def test_a_refusal_is_remembered_once_it_has_a_name() -> None:
    socket = Socket()
    recorder = Recorder(socket.clock)
    nameless = Visit(recorder, socket.clock)
    nameless.fail(ValueError())
    assert recorder.finished() == []
    named = Visit(recorder, socket.clock, begun=9.0)
    named.id = "x"
    named.fail(ValueError())
    named.fail(ValueError())
    named.close()
    (record,) = recorder.finished()
    assert (record.id, record.begun, record.reason, record.error) == ("x", 9.0, "refused", "ValueError")


def test_nothing_is_followed_where_nothing_is_recorded() -> None:
    seen = Visit(Silent(), lambda: 1.0)
    seen.follow(["x"])
    seen.close()
    assert seen.records == []
