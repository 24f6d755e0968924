"""``Visit``: when what happened to one HTTP request on the server's side of the engine.

It writes these times into the records of the engine requests that came of it. Knows no endpoint and no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

from forno.observe.record import RequestRecord
from forno.observe.silent import Silent
from forno.server.limits import Send

BEGUN = "forno.begun"
"""Where an ASGI scope says when the request's first byte was read from the socket."""
BLOCKED = 0.005
"""Seconds that one ``send`` takes only where the client does not read: else it is a copy into the socket."""


class Visit:
    """One HTTP request, from its first byte to the last of its response."""

    __slots__ = ("begun", "clock", "first_sent", "id", "received", "recorder", "records", "sent", "started")

    def __init__(self, recorder: Silent, clock: Callable[[], float], begun: float = 0.0) -> None:
        self.recorder, self.clock = recorder, clock
        self.begun = self.received = begun or clock()
        self.first_sent = self.sent = 0.0
        self.started = False
        """Whether a part of the response was sent."""
        self.id = ""
        """The response's, once a handler has named it."""
        self.records: list[RequestRecord] = []

    def follow(self, ids: Iterable[str]) -> None:
        """The engine was given requests with these ids."""
        for id in ids:
            record = self.recorder.request(id)
            if record is not None:
                record.response = self.id if self.id != id else ""
                record.begun, record.received = self.begun, self.received
                self.records.append(record)

    def sending(self, send: Send) -> Send:
        """``send``, watched: when the response began and ended, and how long it waited for the client."""

        async def watched(message: MutableMapping[str, Any]) -> None:
            self.started = True
            before = self.clock()
            await send(message)
            self.sent = now = self.clock()
            if now - before > BLOCKED:
                self._wait(before, now)
            if not self.first_sent:
                self.first_sent = now
                for record in self.records:
                    record.first_sent = now

        return watched

    def _wait(self, start: float, end: float) -> None:
        for record in self.records:
            if record.finished:
                record.late_send_seconds += max(0.0, end - max(start, record.finished))

    def fail(self, error: BaseException) -> None:
        """The request was refused before the engine was given anything of it."""
        if self.id and not self.records:
            record = RequestRecord(self.id, 0, 0, 0, begun=self.begun, received=self.received, tokenized=self.clock())
            record.arrival = record.tokenized
            self.recorder.refuse(record, error)
            self.records.append(record)

    def close(self) -> None:
        """The response is over, or its client has left."""
        for record in self.records:
            record.sent = self.sent
