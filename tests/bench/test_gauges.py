"""A server's gauges, from pages as servers write them and from what is none."""

from __future__ import annotations

import pytest

from forno.bench.client import Target, open_session
from forno.bench.gauges import Gauges, parse
from tests.bench.scripted import Request, Send, reply, serving

FORNO = """# HELP forno:num_requests_running Requests in the engine.
# TYPE forno:num_requests_running gauge
forno:num_requests_running{engine="0",model_name="m"} 3.0
forno:num_requests_waiting{engine="0",model_name="m"} 2.0
forno:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0
forno:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""


@pytest.mark.parametrize(
    ("page", "reading"),
    [
        (FORNO, (3, 2, 0.25)),
        (FORNO.replace("forno:", "vllm:"), (3, 2, 0.25)),
        ('vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n', (7, None, None)),
        ("sglang:num_running_reqs 3\nsglang:num_queue_reqs 1\nsglang:token_usage 0.5", (3, 1, 0.5)),
        ("llamacpp:requests_processing 3\nllamacpp:requests_deferred 0\n", (3, 0, None)),
        ("forno:num_requests_running 1e1 1764460000\n", (10, None, None)),
        ("forno:num_requests_running words\n", (None, None, None)),
        ("", (None, None, None)),
        ("<html>forno:num_requests_running</html>", (None, None, None)),
    ],
)
def test_pages(page: str, reading: tuple[float | None, ...]) -> None:
    assert parse(page) == reading


@pytest.mark.parametrize(
    ("send", "reading"),
    [
        (Send(reply(FORNO.encode(), kind="text/plain")), (3, 2, 0.25)),
        (Send(reply(b"\xff\xfe", kind="text/plain")), (None, None, None)),
        (Send(reply(b"no", "404 Not Found")), (None, None, None)),
        (Send(close=True), (None, None, None)),
        (Send(b"junk\r\n\r\n", close=True), (None, None, None)),
    ],
)
async def test_reading_a_server(send: Send, reading: tuple[float | None, ...]) -> None:
    def script(request: Request) -> Send:
        assert request.path == "/metrics"
        return send

    async with serving(script) as server, open_session(Target(server.url, "m")) as session:
        assert await Gauges(session, server.url)() == reading
