"""OpenTelemetry spans of requests, for ``--otlp-traces-endpoint``: one per HTTP request, beneath it what it was at and when.

Serving hands over a finished request with one ``put`` into a bounded queue; a thread of its own explains, encodes and sends.
What does not fit is dropped and counted. Attributes follow OpenTelemetry's GenAI semantic conventions and hold ids, lengths and
times: no text. Imported only where an endpoint is configured.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

from forno import __version__
from forno.errors import ConfigError
from forno.observe.explanation import Explanation
from forno.observe.record import RequestRecord

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExportResult
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
except ImportError as missing:
    raise ConfigError('--otlp-traces-endpoint needs OpenTelemetry: pip install "forno[otel]"') from missing

log = logging.getLogger(__name__)

QUEUED = 1024
"""Requests that wait to be sent, at most."""
BATCH = 256
"""Requests of one message, at most."""
DELAY_SECONDS = 1.0
"""How long a span may wait for others to be sent with it."""
IDLE_SECONDS = 0.5
"""How often the thread looks whether it is to end."""
SETTLE_SECONDS = 1.0
"""How long a request may take to leave the engine after its client left."""
OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
"""``gen_ai.operation.name`` of each endpoint that is traced."""
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
Explain = Callable[[RequestRecord], Explanation]


@dataclass(frozen=True, slots=True)
class Caller:
    """The span that a request was sent from, by its ``traceparent`` header."""

    trace: int
    span: int
    sampled: bool


def caller_of(headers: Iterable[tuple[bytes, bytes]]) -> Caller | None:
    """Who calls; None without a header, or with one that W3C Trace Context says to ignore."""
    text = next((value for name, value in headers if name == b"traceparent"), b"").decode("latin-1").strip()
    match = _TRACEPARENT.fullmatch(text)
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace, span = int(match[2], 16), int(match[3], 16)
    return Caller(trace, span, bool(int(match[4], 16) & 1)) if trace and span else None


@dataclass(frozen=True, slots=True)
class Finished:
    """An HTTP request whose response is over."""

    operation: str
    response: str
    records: Sequence[RequestRecord]
    caller: Caller | None


class SpanSender:
    """Sends spans to one endpoint. ``finish`` may be called from any thread; it never waits."""

    def __init__(
        self, endpoint: str, model: str, explain: Explain, clock: Callable[[], float], counts: MutableMapping[str, int]
    ) -> None:
        """``clock`` is the engine's; ``counts`` gets the number of requests that were ``exported``, ``dropped`` or ``failed``.

        Raises ``ConfigError`` for an endpoint that is no URL. Whether somebody listens there is found out later, and only
        counted.
        """
        self.model, self.explain, self.clock, self.counts = model, explain, clock, counts
        self._exporter = OTLPSpanExporter(endpoint=traces_url(endpoint))
        self._resource = Resource.create({"service.name": "forno", "service.version": __version__})
        self._scope = InstrumentationScope("forno", __version__)
        self._ids = RandomIdGenerator()
        self._queue: Queue[Finished] = Queue(QUEUED)
        self._closing = Event()
        self._thread = Thread(target=self._run, name="forno-spans", daemon=True)
        self._thread.start()

    def finish(
        self, path: str, response: str, records: Sequence[RequestRecord], headers: Iterable[tuple[bytes, bytes]]
    ) -> None:
        """``records`` are what became of a request to ``path``. One that its caller does not sample is left out."""
        operation = OPERATIONS.get(path)
        if operation is None or not records:
            return
        caller = caller_of(headers)
        if caller is not None and not caller.sampled:
            return
        try:
            self._queue.put_nowait(Finished(operation, response, tuple(records), caller))
        except Full:
            self.counts["dropped"] += 1

    def close(self, timeout: float = 5.0) -> None:
        """Send what is queued, for ``timeout`` seconds at most; what is left then counts as dropped."""
        self._closing.set()
        self._thread.join(timeout)
        self._exporter.shutdown()
        with suppress(Empty):  # the thread may still be taking from it, too
            while True:
                self._queue.get_nowait()
                self.counts["dropped"] += 1

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Explain requests as they come, and send what there is once in ``DELAY_SECONDS``: a message costs more than a span."""
        pending: list[ReadableSpan] = []
        requests, due = 0, 0.0
        while True:
            request = self._next(max(due - time.monotonic(), 0.0) if pending else IDLE_SECONDS)
            if request is not None and (spans := self._explained(request)):
                pending += spans
                requests += 1
                due = due if requests > 1 else time.monotonic() + DELAY_SECONDS
            closing = request is None and self._closing.is_set()
            if requests and (closing or requests >= BATCH or time.monotonic() >= due):
                self.counts["exported" if self._send(pending) else "failed"] += requests
                pending, requests = [], 0
            if closing:
                return

    def _next(self, timeout: float) -> Finished | None:
        try:
            return self._queue.get_nowait() if self._closing.is_set() else self._queue.get(timeout=timeout)
        except Empty:
            return None

    def _explained(self, request: Finished) -> list[ReadableSpan]:
        """Its spans; none if something in it was not foreseen, which must not end the thread."""
        try:
            return list(self._spans(request))
        except Exception:
            log.exception("the spans of %s could not be made", request.response)
            self.counts["failed"] += 1
            return []

    def _send(self, spans: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # whatever a collector does must not end the thread either
            log.exception("spans could not be sent")
            return False

    def _spans(self, request: Finished) -> Iterator[ReadableSpan]:
        self._settle(request.records)
        shift = time.time() - self.clock()
        found = [self.explain(record) for record in request.records]
        start, end = min(e.start for e in found), max(e.end for e in found)
        caller = request.caller
        trace = caller.trace if caller else self._ids.generate_trace_id()
        parent = None if caller is None else self._context(trace, caller.span, remote=True)
        root = self._context(trace)
        attributes = self._attributes(request, found)
        errors = [record.error for record in request.records if record.error]
        if errors:
            attributes["error.type"] = errors[0]
        status = Status(StatusCode.ERROR, errors[0]) if errors else Status(StatusCode.UNSET)
        name = f"{request.operation} {self.model}"
        times = (start + shift, end + shift)
        yield self._span(name, root, parent, times, attributes=attributes, kind=SpanKind.SERVER, status=status)
        for explanation in found:
            above = root
            if len(found) > 1:
                above = self._context(trace)
                times = (explanation.start + shift, explanation.end + shift)
                yield self._span("answer", above, root, times, attributes=_of_one(explanation))
            for phase in explanation.phases():
                times = (phase.start + shift, phase.end + shift)
                yield self._span(str(phase.phase), self._context(trace), above, times)

    def _settle(self, records: Sequence[RequestRecord]) -> None:
        """Wait for the engine to be done with a request whose client left."""
        until = time.monotonic() + SETTLE_SECONDS
        while not all(record.finished for record in records) and time.monotonic() < until:
            time.sleep(0.01)

    def _context(self, trace: int, span: int = 0, remote: bool = False) -> SpanContext:
        return SpanContext(trace, span or self._ids.generate_span_id(), remote, TraceFlags(TraceFlags.SAMPLED))

    def _span(
        self, name: str, context: SpanContext, parent: SpanContext | None, times: tuple[float, float], **more: Any
    ) -> ReadableSpan:
        """``times`` are seconds of the system's clock; ``more`` are further arguments of ``ReadableSpan``."""
        start, end = (int(time * 1e9) for time in times)
        about: dict[str, Any] = {"resource": self._resource, "instrumentation_scope": self._scope, **more}
        return ReadableSpan(name, context, parent, start_time=start, end_time=end, **about)

    def _attributes(self, request: Finished, found: Sequence[Explanation]) -> dict[str, Any]:
        records = request.records
        attributes = {
            "gen_ai.operation.name": request.operation,
            "gen_ai.provider.name": "forno",
            "gen_ai.request.model": self.model,
            "gen_ai.response.model": self.model,
            "gen_ai.response.id": request.response,
            "gen_ai.request.max_tokens": records[0].max_tokens,
            "gen_ai.response.finish_reasons": tuple(record.reason for record in records),
            "gen_ai.usage.input_tokens": records[0].num_prompt,
            "gen_ai.usage.cache_read.input_tokens": records[0].num_cached,
            "gen_ai.usage.output_tokens": sum(record.num_generated for record in records),
        }
        if len(records) > 1:
            attributes["gen_ai.request.choice.count"] = len(records)
        first = min((record.first_token for record in records if record.first_token), default=0.0)
        if first:
            attributes["gen_ai.response.time_to_first_chunk"] = first - min(e.start for e in found)
        if len(found) == 1:
            attributes |= _of_one(found[0])
        return attributes


def _of_one(explanation: Explanation) -> dict[str, Any]:
    """What conventions have no name for: where the time of one engine request went."""
    record = explanation.record
    attributes: dict[str, Any] = {f"forno.seconds.{kind}": part.seconds for kind, part in explanation.parts.items()}
    attributes["forno.preemptions"] = record.num_preemptions
    if record.slo_class:
        attributes["forno.slo_class"] = record.slo_class
    return attributes


def traces_url(endpoint: str) -> str:
    """Where OTLP/HTTP traces go: ``endpoint``, with the standard path if it has none. Raises ``ConfigError``."""
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(f"--otlp-traces-endpoint must be a URL such as http://127.0.0.1:4318/v1/traces, got {endpoint!r}")
    return endpoint.rstrip("/") + "/v1/traces" if parts.path in ("", "/") else endpoint
