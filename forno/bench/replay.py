"""Traffic from files: requests as somebody wrote them (``file``), or at the times at which they once came (``trace``).

It knows what ``traces.py`` read, and makes text for requests of which only lengths were recorded.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from forno.bench import traces
from forno.bench.corpus import Corpus
from forno.bench.ruler import Ruler
from forno.bench.traces import Recorded
from forno.bench.workload import Call, Conversation, Workload, knob, user
from forno.errors import ConfigError


@dataclass(frozen=True, slots=True)
class _Texts:
    """Text for recorded lengths: equal blocks, and equal sessions, get equal text."""

    corpus: Corpus
    ruler: Ruler
    seed: int
    block_tokens: int

    def text(self, recorded: Recorded, index: int) -> str:
        """A message whose prompt has about ``recorded.input_tokens``; all of it but its blocks is request ``index``'s own, or
        its session's: a longer prompt of the same session begins with the shorter one."""
        assert recorded.input_tokens is not None
        words = self.ruler.prompt_words(recorded.input_tokens)
        own = f"session:{recorded.session}" if recorded.session is not None else f"request:{index}"
        size = self.ruler.words(self.block_tokens)
        known = list(itertools.islice(recorded.blocks, math.ceil(words / size)))
        parts = [self._span(f"block:{block}", f"[{block}]", min(size, words - i * size)) for i, block in enumerate(known)]
        if (rest := words - len(known) * size) > 0:
            parts.append(self._span(own, "", rest))
        return " ".join(parts)

    def _span(self, what: str, mark: str, words: int) -> str:
        """Words that depend on ``what`` alone; ``mark`` is the first of them, so that no two things begin alike."""
        start = random.Random(f"{self.seed}:{what}").randrange(len(self.corpus.words))
        if not mark:
            return self.corpus.span(start, words)
        return f"{mark} {self.corpus.span(start, words - 1)}" if words > 1 else mark


@dataclass(slots=True)
class _Recording:
    """A session's requests, as they were recorded: answers do not change what follows, they only come before it."""

    session: int
    calls: list[Call]
    think_seconds: float = 0.0
    sent: int = 0

    def first(self) -> Call:
        self.sent = 1
        return self.calls[0]

    def next(self, answer: str) -> Call | None:
        if self.sent == len(self.calls):
            return None
        self.sent += 1
        return self.calls[self.sent - 1]


def _sessions(recorded: list[Recorded]) -> list[list[tuple[int, Recorded]]]:
    """Requests with their numbers, those of a session together, in the order of each one's first."""
    groups: dict[object, list[tuple[int, Recorded]]] = {}
    for index, request in enumerate(recorded):
        groups.setdefault(index if request.session is None else request.session, []).append((index, request))
    return list(groups.values())


def _call(request: Recorded, index: int, texts: _Texts, max_tokens: int, at: float | None) -> Call:
    limit = request.max_tokens or max_tokens
    if request.prompt is not None:
        return Call(limit, prompt=request.prompt, at=at, extra=request.extra)
    messages = request.messages or (user(texts.text(request, index)),)
    return Call(limit, messages, at=at, extra=request.extra)


@dataclass(frozen=True, slots=True)
class FileWorkload(Workload):
    """Requests from a file of JSON lines, sent when the arrivals say."""

    name = "file"

    path: str = knob("", "JSON lines with messages, prompt or input_tokens, and perhaps max_tokens, session and body.")
    max_tokens: int = knob(64, "Length of an answer where the file does not say.")
    limit: int = knob(0, "Take only so many requests of the file; 0: all.")
    in_order: bool = knob(True, "Send requests in the file's order, rather than in a random one.")
    repeat: bool = knob(True, "Begin again after the last request.")

    def __post_init__(self) -> None:
        Workload.__post_init__(self)
        _check_file(self.path, self.max_tokens)

    def conversations(self, ruler: Ruler, seed: int) -> Iterator[Conversation]:
        groups = _sessions(traces.read(Path(self.path), "jsonl", self.limit))
        texts, numbers = _Texts(Corpus.load(), ruler, seed, 512), itertools.count()
        for around in itertools.count() if self.repeat else range(1):
            if not self.in_order:
                random.Random(f"{seed}:file:{around}").shuffle(groups)
            for group in groups:
                calls = [_call(request, index, texts, self.max_tokens, None) for index, request in group]
                yield _Recording(next(numbers), calls)


@dataclass(frozen=True, slots=True)
class TraceWorkload(Workload):
    """Recorded traffic at its own times, or faster or slower."""

    name = "trace"

    path: str = knob("", "A trace: Azure's CSV, Mooncake's JSON lines, or our own.")
    format: str = knob("auto", "The trace's format; auto: by its first line.", choices=traces.FORMATS)
    speed: float = knob(1.0, "How much faster than recorded to send: 2 halves all times between requests.")
    limit: int = knob(0, "Take only so many requests of the file; 0: all.")
    max_tokens: int = knob(64, "Length of an answer where the trace does not say.")
    max_input_tokens: int = knob(0, "Cut longer recorded prompts to so many tokens; 0: none.")
    max_output_tokens: int = knob(0, "Cut longer recorded answers to so many tokens; 0: none.")
    block_tokens: int = knob(512, "Tokens of a block that a hash in a Mooncake trace stands for.")

    def __post_init__(self) -> None:
        Workload.__post_init__(self)
        _check_file(self.path, self.max_tokens)
        if not 1e-6 <= self.speed <= 1e6:
            raise ConfigError(f"--speed must lie between 0.000001 and 1000000, got {self.speed}")
        if not self.block_tokens:
            raise ConfigError("--block-tokens must be at least 1")

    def conversations(self, ruler: Ruler, seed: int) -> Iterator[Conversation]:
        path = Path(self.path)
        recorded = traces.read(path, self.format, self.limit, self.block_tokens)
        if any(request.at is None for request in recorded):
            raise ConfigError(f"{path}: a request without a time cannot be replayed; send it as --workload file")
        recorded.sort(key=_time)
        texts, start = _Texts(Corpus.load(), ruler, seed, self.block_tokens), _time(recorded[0])
        for session, group in enumerate(_sessions(recorded)):
            timed = ((index, self._cut(request), (_time(request) - start) / self.speed) for index, request in group)
            yield _Recording(session, [_call(request, index, texts, self.max_tokens, at) for index, request, at in timed])

    def _cut(self, request: Recorded) -> Recorded:
        if self.max_input_tokens and request.input_tokens:
            request = replace(request, input_tokens=min(request.input_tokens, self.max_input_tokens))
        if self.max_output_tokens and request.max_tokens:
            request = replace(request, max_tokens=min(request.max_tokens, self.max_output_tokens))
        return request


def _time(request: Recorded) -> float:
    assert request.at is not None
    return request.at


def _check_file(path: str, max_tokens: int) -> None:
    if not path:
        raise ConfigError("this workload reads a file: name it with --path")
    if not Path(path).is_file():
        raise ConfigError(f"there is no file {path}")
    if not max_tokens:
        raise ConfigError("--max-tokens must be at least 1")
