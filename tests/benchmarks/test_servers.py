"""Starting, timing and stopping a server: here, small scripts that stand in for one."""

from __future__ import annotations

import sys

import pytest

from benchmarks import servers

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    tries = 0
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Handler.tries += 1
        if Handler.tries == 1 or MODE == "broken":
            self.send_response(503 if MODE != "broken" else 400); self.end_headers(); return
        self.send_response(200); self.end_headers()
        self.wfile.write(b'data: {"choices": [{"delta": {"role": "assistant"}}]}\\n\\n')
        self.wfile.write(b'data: {"choices": [{"delta": {"content": "Hi"}}]}\\n\\ndata: [DONE]\\n\\n')
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def command(port: int, mode: str) -> list[str]:
    return [sys.executable, "-c", f"MODE = {mode!r}\n{SERVER}", str(port)]


def test_first_token_waits_while_the_server_loads_and_the_server_is_stopped() -> None:
    port = servers.free_port()
    with servers.running(command(port, "good"), port) as server:
        assert server.first_token() > 0
        assert server.process.poll() is None
    assert server.process.returncode is not None


@pytest.mark.parametrize(("mode", "message"), [("broken", "400")])
def test_an_error_is_not_a_first_token(mode: str, message: str) -> None:
    port = servers.free_port()
    with servers.running(command(port, mode), port) as server, pytest.raises(servers.ServerError, match=message):
        server.first_token()


def test_a_server_that_dies_shows_its_log() -> None:
    dying = [sys.executable, "-c", "raise SystemExit('out of ovens')"]
    with servers.running(dying, 1) as server, pytest.raises(servers.ServerError, match="out of ovens"):
        server.first_token()
