"""Spans as a collector receives them: OTLP over HTTP, on loopback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest import mock

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from forno.__main__ import main
from forno.errors import ConfigError
from forno.observe.explain import explain
from forno.observe.record import RequestRecord
from forno.server import spans
from forno.server.spans import SpanSender, caller_of, traces_url
from tests.server.harness import LONG, eventually, running

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "perfidious albatross"
PATIENCE = 60.0
"""Seconds, for a test that fails only."""


class Collector:
    """Spans that were received, as dicts; answers with ``status`` once ``open`` is set."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.status = 200
        self.open = Event()
        self.open.set()
        self.url = ""

    def take(self, path: str, body: bytes) -> None:
        self.paths.append(path)
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {a.key: value_of(a.value) for a in resource.resource.attributes}
            self.spans += [as_dict(span) | {"resource": about} for scope in resource.scope_spans for span in scope.spans]


def as_dict(span: Any) -> dict[str, Any]:
    return {
        "name": span.name,
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "kind": span.kind,
        "status": span.status.code,
        "attributes": {a.key: value_of(a.value) for a in span.attributes},
    }


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return tuple(map(value_of, value.array_value.values)) if kind == "array_value" else getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.open.wait(30)
            if collector.status == 200:
                collector.take(self.path, body)
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        collector.open.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_request_and_what_it_was_at(model_path: Path) -> None:
    with collecting() as collector, running(model_path, otlp_traces_endpoint=collector.url, slo="fast:e2e=9") as server:
        body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 5, "ignore_eos": True}
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        answer = server.post("/v1/chat/completions", body, headers=headers).json()
        eventually(lambda: server.serving.metrics.spans == {"exported": 1, "dropped": 0, "failed": 0}, PATIENCE)
    root, *parts = collector.spans
    assert collector.paths == ["/v1/traces"]
    assert (root["name"], root["trace"], root["parent"]) == ("chat tiny", TRACE, PARENT)
    assert root["kind"] == 2  # SERVER
    assert root["resource"]["service.name"] == "forno"
    found = root["attributes"]
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.response.id"] == answer["id"]
    assert found["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
    assert found["gen_ai.usage.output_tokens"] == 5
    assert found["gen_ai.response.finish_reasons"] == ("length",)
    assert found["gen_ai.request.max_tokens"] == 5
    assert found["forno.slo_class"] == "fast"
    assert [part["name"] for part in parts] == ["arriving", "waiting", "prefill", "decode", "leaving"]
    assert {part["parent"] for part in parts} == {root["id"]}
    assert {part["trace"] for part in parts} == {TRACE}
    assert len({span["id"] for span in collector.spans}) == 6
    # Its parts follow one another from its start to its end.
    edges = [root["start"], *[part["end"] for part in parts]]
    assert [part["start"] for part in parts] == pytest.approx(edges[:-1], abs=1000)
    assert edges[-1] == pytest.approx(root["end"], abs=1000)
    seconds = sum(value for key, value in found.items() if key.startswith("forno.seconds."))
    assert seconds == pytest.approx((root["end"] - root["start"]) / 1e9, rel=0.02)
    for body in collector.bodies:
        assert not any(word.encode() in body for word in SECRET.split())


def test_several_answers_are_spans_of_their_own(model_path: Path) -> None:
    with collecting() as collector, running(model_path, otlp_traces_endpoint=collector.url) as server:
        answer = server.complete(n=2, max_tokens=3, ignore_eos=True)
        eventually(lambda: bool(collector.spans), PATIENCE)
    root, answers = collector.spans[0], [span for span in collector.spans if span["name"] == "answer"]
    assert root["name"] == "text_completion tiny"
    assert root["parent"] == ""
    assert root["attributes"]["gen_ai.response.id"] == answer["id"]
    assert root["attributes"]["gen_ai.request.choice.count"] == 2
    assert root["attributes"]["gen_ai.usage.output_tokens"] == 6
    assert {span["parent"] for span in answers} == {root["id"]}
    assert {span["parent"] for span in collector.spans} == {"", root["id"], *(span["id"] for span in answers)}


def test_failures_and_clients_that_left(model_path: Path) -> None:
    with collecting() as collector, running(model_path, otlp_traces_endpoint=collector.url) as server:
        assert server.post("/v1/completions", {"prompt": "a", "deadline": 1e-6}).status_code == 408
        with server.streaming(**LONG):
            pass
        server.wait_idle()
        eventually(lambda: server.serving.metrics.spans["exported"] == 2, PATIENCE)
    roots = {span["attributes"]["gen_ai.response.finish_reasons"][0]: span for span in collector.spans if not span["parent"]}
    assert roots["error"]["status"] == 2
    assert roots["error"]["attributes"]["error.type"] == "DeadlineError"
    assert roots["abort"]["status"] == 0


def test_a_caller_that_does_not_sample_is_left_out(model_path: Path) -> None:
    with collecting() as collector, running(model_path, otlp_traces_endpoint=collector.url) as server:
        for flags in ("00", "01"):
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}
            server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=headers)
        eventually(lambda: server.serving.metrics.spans["exported"] == 1, PATIENCE)
    assert len([span for span in collector.spans if span["parent"] == PARENT]) == 1


def test_what_is_queued_is_sent_before_the_end() -> None:
    with collecting() as collector:
        sending = sender(collector.url)
        for number in range(3):
            sending.finish("/v1/completions", f"r{number}", [record(number)], [])
        sending.close(PATIENCE)
        assert [span["attributes"]["gen_ai.response.id"] for span in collector.spans if not span["parent"]] == [
            "r0",
            "r1",
            "r2",
        ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"00-{TRACE}-{PARENT}-01", (TRACE, PARENT, True)),
        (f"00-{TRACE}-{PARENT}-00", (TRACE, PARENT, False)),
        (f"cc-{TRACE}-{PARENT}-03-what-the-future-brings", (TRACE, PARENT, True)),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        (f"00-{TRACE}-{PARENT}", None),
        ("", None),
    ],
)
def test_traceparent(text: str, expected: tuple[str, str, bool] | None) -> None:
    caller = caller_of([(b"host", b"x"), (b"traceparent", text.encode())])
    assert (caller and (f"{caller.trace:032x}", f"{caller.span:016x}", caller.sampled)) == expected


def sender(url: str) -> SpanSender:
    counts = {"exported": 0, "dropped": 0, "failed": 0}
    return SpanSender(url, "tiny", lambda record: explain(record, [], 0.0, 3.0), lambda: 3.0, counts)


def record(number: int = 1) -> RequestRecord:
    return RequestRecord(f"r{number}", number, 3, 4, arrival=1.0, scheduled=1.5, finished=2.0, sent=2.5, reason="stop")


def test_a_collector_that_hangs_costs_nothing_but_its_spans() -> None:
    with collecting() as collector:
        collector.open.clear()
        sending = sender(collector.url)
        for number in range(spans.QUEUED * 2):
            sending.finish("/v1/completions", f"r{number}", [record(number)], [])
        dropped = sending.counts["dropped"]
        assert spans.QUEUED - spans.BATCH <= dropped <= spans.QUEUED
        collector.open.set()
        sending.close(PATIENCE)
    assert sending.counts == {"exported": spans.QUEUED * 2 - dropped, "dropped": dropped, "failed": 0}


def test_a_collector_that_refuses_is_counted() -> None:
    with collecting() as collector:
        collector.status = 400
        sending = sender(collector.url)
        sending.finish("/v1/completions", "r", [record()], [])
        sending.close(PATIENCE)
    assert sending.counts["failed"] == 1


def test_what_is_no_generation_has_no_span() -> None:
    with collecting() as collector:
        sending = sender(collector.url)
        sending.finish("/tokenize", "", [record()], [])
        sending.finish("/v1/completions", "r", [], [])
        sending.close(PATIENCE)
        assert collector.spans == []


def test_addresses() -> None:
    assert traces_url("http://a:4318") == traces_url("http://a:4318/") == "http://a:4318/v1/traces"
    assert traces_url("https://a/otlp/v1/traces") == "https://a/otlp/v1/traces"
    for bad in ("a:4318", "grpc://a:4317", "http://", "http://a:99999", "http://[a"):
        with pytest.raises(ConfigError, match="--otlp-traces-endpoint must be a URL"):
            traces_url(bad)


def test_without_opentelemetry_it_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    missing = {name: None for name in sys.modules if name.startswith("opentelemetry")}
    without = {name: module for name, module in sys.modules.items() if name != "forno.server.spans"}
    with mock.patch.dict("sys.modules", {**without, **missing}, clear=True):
        assert main(["serve", "--otlp-traces-endpoint", "http://127.0.0.1:1"]) == 1
    assert 'pip install "forno[otel]"' in capsys.readouterr().err


def test_it_needs_the_recorder(model_path: Path) -> None:
    with pytest.raises(ConfigError, match="--no-record"), running(model_path, record=False, otlp_traces_endpoint="http://a"):
        pass
