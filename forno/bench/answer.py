"""What the events of one streamed answer say: content, usage, errors. It knows OpenAI's chunks, neither HTTP nor a clock.

Servers differ: text may come as ``content``, ``reasoning``, a tool call or a completion's ``text``; usage in a last chunk
of its own or beside the last text. Whatever does not add up raises ``BadStream``, so that no number is made of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec

from forno.bench.numbers import short
from forno.bench.records import RequestRecord
from forno.bench.sse import BadStream

DONE = b"[DONE]"
MOST_TOKENS = 1 << 40
"""Of any count: no answer has more, and a result file may hold no more."""
MOST_QUEUE_MS = 1e9
_SHOWN = 120
"""Characters of what a server sent that an error repeats."""


class ServerError(Exception):
    """The server reported an error inside its stream."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Logprobs(msgspec.Struct):
    content: list[msgspec.Raw] | None = None
    tokens: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Timings(msgspec.Struct):
    queue_ms: float | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Answer:
    """One answer as it comes: fills its record, and keeps the text for the conversation's next turn."""

    def __init__(self, record: RequestRecord) -> None:
        self.record = record
        self.text: list[str] = []
        self.done = False
        self.usage: _Usage | None = None
        self._times: list[float] = []
        self._tokens: list[int] = []

    def take(self, event: bytes, now: float) -> bool:
        """Read one event that came at ``now``; returns whether it had content. Raises ``BadStream`` and ``ServerError``."""
        if event == DONE:
            self.done = True
            return False
        try:
            chunk = _decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadStream(f"an event is no chunk of an answer ({error}): {shown(event)}") from None
        if chunk.error is not None:
            raise ServerError(message_of(chunk.error))
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.timings is not None and chunk.timings.queue_ms is not None:
            if not 0 <= chunk.timings.queue_ms <= MOST_QUEUE_MS:
                raise BadStream(f"a queue time of {chunk.timings.queue_ms:g} ms makes no sense")
            self.record.queue_seconds = chunk.timings.queue_ms / 1000
        return sum(self._content(choice, now) for choice in chunk.choices or ()) > 0

    def _content(self, choice: _Choice, now: float) -> bool:
        delta = choice.delta
        if choice.finish_reason:
            self.record.finish_reason = choice.finish_reason
        text = (delta.content if delta else choice.text) or ""
        if not (text or (delta and (delta.reasoning_content or delta.reasoning or delta.tool_calls))):
            return False
        self.text.append(text)
        self._times.append(now)
        if choice.logprobs:
            self._tokens.append(len(choice.logprobs.content or choice.logprobs.tokens or ()))
        return True

    def finish(self, usage_promised: bool) -> None:
        """Check the whole answer and settle its record. Raises ``BadStream``."""
        times, record = self._times, self.record
        if times:
            record.first, record.last = round(times[0], 6), round(times[-1], 6)
            record.gaps = [round(b - a, 6) for a, b in pairwise(times)]
        if len(self._tokens) == len(times) and all(self._tokens):
            record.chunk_tokens = self._tokens
        self._settle_usage(usage_promised)

    def _settle_usage(self, promised: bool) -> None:
        usage, record, chunks = self.usage, self.record, len(self._times)
        if usage is None:
            record.output_tokens = chunks
            if promised and self.done:
                raise BadStream("no usage came, though the server sends it with other answers")
            return
        details = usage.prompt_tokens_details
        cached = (details.cached_tokens if details else None) or 0
        if not (0 <= cached <= usage.prompt_tokens <= MOST_TOKENS and 0 <= usage.completion_tokens <= MOST_TOKENS):
            raise BadStream(f"usage makes no sense: {shown(msgspec.json.encode(usage))}")
        record.prompt_tokens, record.output_tokens, record.cached_tokens = usage.prompt_tokens, usage.completion_tokens, cached
        record.tells_cached = details is not None and details.cached_tokens is not None
        if self.done and chunks and not record.output_tokens:
            raise BadStream(f"usage says 0 output tokens, but {chunks} chunks with content came")


def message_of(error: Any) -> str:
    """An error object of any server's shape, in one line."""
    inner = error.get("error", error) if isinstance(error, dict) else error
    text = inner.get("message") or inner.get("detail") or inner if isinstance(inner, dict) else inner
    return shown(str(text))


def shown(data: bytes | str) -> str:
    """The beginning of what a server sent, printable and in one line."""
    return short(data.decode("utf-8", "replace") if isinstance(data, bytes) else data, _SHOWN)
