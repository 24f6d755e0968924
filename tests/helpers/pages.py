"""A server of a few fixed pages, in a thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Pages:
    """What a fake server answers: path to (status, body); and the headers of the last request."""

    def __init__(self, pages: Mapping[str, tuple[int, str]]) -> None:
        self.pages = dict(pages)
        self.headers: dict[str, str] = {}
        self.url = ""


@contextmanager
def serving(pages: Pages) -> Iterator[Pages]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pages.headers = {name.lower(): value for name, value in self.headers.items()}
            status, body = pages.pages.get(self.path, (404, "{}"))
            self.send_response(status)
            self.send_header("content-length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    pages.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield pages
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
