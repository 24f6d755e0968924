"""A request's head is bounded, however it arrives; what fits is served as before."""

from __future__ import annotations

import socket
import sys
import time
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import pytest

from forno.server.protocol import MAX_HEAD_BYTES, date_header, unread_seconds
from tests.server.harness import Running

LINE = b"GET /health HTTP/1.1\r\nHost: x\r\n"


def connect(server: Running) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((str(address.hostname), address.port or 0), timeout=30)


def answer(connection: socket.socket) -> bytes:
    """All that comes until the server closes; a reset ends it too, if the server left while we were sending."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def flood(connection: socket.socket, piece: bytes) -> None:
    connection.sendall(LINE + b"Y: ")
    for _ in range(64 * MAX_HEAD_BYTES // len(piece)):
        connection.sendall(piece)


@pytest.mark.parametrize("piece", [b"X: " + b"a" * 1000 + b"\r\n", b"a" * 1000], ids=["many headers", "an endless header"])
def test_a_head_without_end_is_refused(server: Running, piece: bytes) -> None:
    with connect(server) as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
        flood(connection, piece)
    assert server.http.get("/health").status_code == 200


def test_large_heads_and_pipelined_requests_are_served(server: Running) -> None:
    large = LINE + b"X: " + b"a" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n"
    last = LINE + b"Connection: close\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(large + LINE + b"\r\n" + large + last)
        assert answer(connection).count(b'{"status":"ok"}') == 4


def test_every_answer_says_when_it_was_made(server: Running) -> None:
    date = server.http.get("/health").headers["date"]
    assert abs(parsedate_to_datetime(date).timestamp() - time.time()) < 60
    assert date_header(0) == [(b"date", b"Thu, 01 Jan 1970 00:00:00 GMT")]


class Told:
    """A socket that says that its last data came ``milliseconds`` ago."""

    def __init__(self, milliseconds: int) -> None:
        self.info = bytes(52) + milliseconds.to_bytes(4, sys.byteorder)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option, size) == (socket.IPPROTO_TCP, socket.TCP_INFO, 56)
        return self.info


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it")
def test_what_lay_in_the_socket_is_never_overstated() -> None:
    tick = time.clock_getres(6)
    assert unread_seconds(Told(0)) == 0.0
    assert unread_seconds(Told(100)) == pytest.approx(0.1 - tick)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert unread_seconds(ours) == 0.0, "no TCP"
    assert unread_seconds(None) == 0.0
