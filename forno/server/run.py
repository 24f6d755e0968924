"""``Run``: one request in flight, whatever its endpoint: its choices and the stream of their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from forno.engine.stream import Stream
from forno.request import RequestOutput
from forno.server import convert, usage, wire
from forno.server.respond import ChunkTemplate, with_field
from forno.server.serving import Serving


class AnyChoice(Protocol):
    """What both endpoints keep of a choice."""

    last: RequestOutput | None
    """Its latest output."""
    arrived: float
    """When that came, as ``EngineMetrics.token`` counts."""


B = TypeVar("B", bound=wire.Sampling)
C = TypeVar("C", bound=AnyChoice)


class Run(Generic[B, C]):
    """``body`` is the request as it came, ``choices`` are in the order of the engine's requests."""

    def __init__(
        self, serving: Serving, body: B, id: str, choices: Sequence[C], stream: Stream[tuple[int, RequestOutput]]
    ) -> None:
        self.serving, self.body, self.id, self.choices, self.stream = serving, body, id, choices, stream
        self.created = convert.now()
        options = body.stream_options
        self._counts = bool(options and options.include_usage and options.continuous_usage_stats)

    def arrived(self, index: int, output: RequestOutput) -> C:
        """The choice that an output from the stream is for. Raises what ended it, if an error did."""
        convert.raise_error(output)
        choice = self.choices[index]
        choice.arrived = self.serving.metrics.token(choice.arrived)
        return choice

    def usage(self) -> wire.Usage:
        """Tokens of the whole request; the choices of one prompt count it once."""
        return usage.usage(self._done(), self.body.n or 1)

    def timings(self) -> wire.Timings:
        return usage.timings(self._done())

    def counted(self, choice: C, events: bytes) -> bytes:
        """Events of a choice; if the client wants it, the last of them with the tokens of that choice up to now."""
        if not self._counts or not events:
            return events
        assert choice.last is not None
        return with_field(events, "usage", usage.usage([choice.last], 1))

    def tail(self, template: ChunkTemplate) -> bytes:
        """The last chunk of a stream whose client wants the usage, else nothing."""
        wanted = self.body.stream_options and self.body.stream_options.include_usage
        return template.tail(self.usage(), self.timings()) if wanted else b""

    def _done(self) -> list[RequestOutput]:
        return [choice.last for choice in self.choices if choice.last is not None]
