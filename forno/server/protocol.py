"""HTTP/1.1 as uvicorn reads it, with a limit on what comes before a body. It knows no route and no engine."""

from __future__ import annotations

import socket
import struct
import time
from email.utils import formatdate
from functools import lru_cache
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from forno.server.visit import BEGUN

MAX_HEAD_BYTES = 512 << 10
"""Of a request line and its headers; several reads of a socket, so that what follows in the same read cannot exceed it."""
_COMPLETE = -1
_LAST_RECEIVED = struct.Struct("=52xI")
"""``tcpi_last_data_recv`` in Linux's ``tcp_info``: milliseconds since the last data came."""

_TICKS = 6
"""Linux's ``CLOCK_MONOTONIC_COARSE``, whose resolution is a tick; Python does not name it."""


@lru_cache(maxsize=1)
def date_header(second: int) -> list[tuple[bytes, bytes]]:
    """What every response carries. Made once in a second in which there is a request, not by a timer."""
    return [(b"date", formatdate(second, usegmt=True).encode())]


def unread_seconds(connection: Any) -> float:
    """How long what was just read from a TCP socket had lain there, at least: the event loop had something else to do.

    Linux tells it in ticks of its timer, of which one is left out: never more than the truth. 0 elsewhere.
    """
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED.size)
        (milliseconds,) = _LAST_RECEIVED.unpack(info)
        return max(0.0, milliseconds / 1000 - time.clock_getres(_TICKS))
    except (AttributeError, OSError, struct.error):  # no TCP, or no Linux
        return 0.0


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a request whose head does not end: the parser would keep all of it in memory."""

    _head = 0
    """Bytes received of a head that is not complete yet, or ``_COMPLETE``."""

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()
        cast(dict, self.scope)[BEGUN] = time.monotonic() - unread_seconds(self.transport.get_extra_info("socket"))

    def on_headers_complete(self) -> None:
        self._head = _COMPLETE
        self.server_state.default_headers = date_header(int(time.time()))
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        before = self._head
        super().data_received(data)
        if before != _COMPLETE and self._head == before:
            self._head += len(data)
            if self._head > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"The request's headers exceed {MAX_HEAD_BYTES} bytes.")
