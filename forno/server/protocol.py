"""HTTP/1.1 as uvicorn reads it, with a limit on what comes before a body. It knows no route and no engine."""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import lru_cache
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from forno.server.visit import BEGUN

MAX_HEAD_BYTES = 512 << 10
"""Of a request line and its headers; several reads of a socket, so that what follows in the same read cannot exceed it."""
_COMPLETE = -1


@lru_cache(maxsize=1)
def date_header(second: int) -> list[tuple[bytes, bytes]]:
    """What every response carries. Made once in a second in which there is a request, not by a timer."""
    return [(b"date", formatdate(second, usegmt=True).encode())]


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a request whose head does not end: the parser would keep all of it in memory."""

    _head = 0
    """Bytes received of a head that is not complete yet, or ``_COMPLETE``."""

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()
        cast(dict, self.scope)[BEGUN] = time.monotonic()

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
