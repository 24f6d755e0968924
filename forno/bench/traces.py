"""Recorded traffic, read from files: Azure's LLM inference traces, Mooncake's, and our own lines of JSON.

It knows formats, not prompts: what a request of so many tokens says is ``replay.py``'s business. Every line is checked, and
what is wrong with one is a ``ConfigError`` that names the file and the line.

==========  ============================================================================================================
format      lines
==========  ============================================================================================================
azure       CSV with the columns TIMESTAMP (ISO 8601), ContextTokens, GeneratedTokens, as in the Azure Public Dataset's LLM
            inference traces of 2023 and 2024.
mooncake    JSON: ``timestamp`` (ms), ``input_length``, ``output_length`` (tokens), ``hash_ids`` (one per block of 512 tokens,
            the last one shorter; requests share a prefix as far as their ids agree), as in the Mooncake paper's traces (Qin et
            al., FAST 2025).
jsonl       JSON: ``messages``, ``prompt`` (text) or ``input_tokens`` (a length); ``at`` (seconds), ``max_tokens``, ``session``
            (text or number: requests of one session are sent one after the other) and ``body`` (more fields of the request),
            all of which may be missing.
==========  ============================================================================================================
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from forno.errors import ConfigError

FORMATS = ("auto", "azure", "mooncake", "jsonl")
LINE_LIMIT, FILE_LIMIT, REQUEST_LIMIT, TOKEN_LIMIT = 16 << 20, 2 << 30, 2_000_000, 10_000_000
"""Bytes of a line and of what is read of a file, its requests, tokens of a request: more is taken for something else."""
RESERVED = {"model", "messages", "prompt", "max_tokens", "max_completion_tokens", "stream", "stream_options"}
"""Fields of a request's body that the load generator sets."""
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

Tokens = Annotated[int, msgspec.Meta(ge=0, le=TOKEN_LIMIT)]
Time = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request of a file. Exactly one of ``messages``, ``prompt`` and ``input_tokens`` is set."""

    at: float | None
    """Seconds, from any origin; None where the file does not say."""
    messages: tuple[dict[str, Any], ...] | None = None
    prompt: str | None = None
    input_tokens: int | None = None
    blocks: tuple[int, ...] = ()
    """Identities of the prompt's blocks, from its start; equal ones hold equal text."""
    max_tokens: int | None = None
    session: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class _Mooncake(msgspec.Struct, forbid_unknown_fields=True):
    timestamp: Time
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[int] = []


class _Message(msgspec.Struct):
    role: str
    content: Any


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    at: Time | None = None
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)] | None = None
    prompt: str | None = None
    input_tokens: Tokens | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=TOKEN_LIMIT)] | None = None
    session: str | int | None = None
    body: dict[str, Any] = {}


def read(path: Path, format: str = "auto", limit: int = 0, block_tokens: int = 512) -> list[Recorded]:
    """The requests of a file, in its order; the first ``limit`` if that is not 0.

    ``block_tokens``: tokens of a Mooncake block. Raises ``ConfigError``: no such file, no request in it, more than
    ``REQUEST_LIMIT`` of them, or a line that is not of the format.
    """
    if format not in FORMATS:
        raise ConfigError(f"trace formats are {', '.join(FORMATS)}, not {format!r}")
    found: list[Recorded] = []
    try:
        lines = _lines(path)
        first = next(lines, None)
        if first is None:
            raise ConfigError(f"{path} holds no request")
        parse, lines = _parser(path, format, first, lines, block_tokens)
        for number, line in lines:
            if limit and len(found) == limit:
                break
            if len(found) == REQUEST_LIMIT:
                raise ConfigError(f"{path} holds more than {REQUEST_LIMIT} requests; take the first ones with a limit")
            found.append(_parsed(path, number, line, parse))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    if not found:
        raise ConfigError(f"{path} holds no request")
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbers, from 1, and texts of the lines that are not blank."""
    with path.open("rb") as file:
        number = size = 0
        while line := file.readline(LINE_LIMIT + 1):
            number, size = number + 1, size + len(line)
            if len(line) > LINE_LIMIT:
                raise ConfigError(f"{path}:{number}: the line is longer than {LINE_LIMIT >> 20} MiB")
            if size > FILE_LIMIT:
                raise ConfigError(f"{path}:{number}: more than {FILE_LIMIT >> 30} GiB; take the first requests with a limit")
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError:
                raise ConfigError(f"{path}:{number}: the line is not UTF-8 text") from None
            if text:
                yield number, text


Parse = Callable[[str], Recorded]
Lines = Iterator[tuple[int, str]]


def _parser(path: Path, format: str, first: tuple[int, str], rest: Lines, block_tokens: int) -> tuple[Parse, Lines]:
    """What reads a line, and the lines that hold requests."""
    number, text = first
    if format == "auto":
        format = _guess(text)
    if format == "azure":
        names = [name.strip() for name in text.split(",")]
        if missing := [name for name in _AZURE if name not in names]:
            raise ConfigError(f"{path}:{number}: an Azure trace starts with the line {','.join(_AZURE)}; no {missing[0]} here")
        columns = [names.index(name) for name in _AZURE]
        return lambda line: _azure(line, columns), rest
    again = _chain(first, rest)
    if format == "mooncake":
        return lambda line: _mooncake(line, block_tokens), again
    return _own, again


def _chain(first: tuple[int, str], rest: Lines) -> Lines:
    yield first
    yield from rest


def _guess(text: str) -> str:
    if not text.startswith("{"):
        return "azure"
    return "mooncake" if '"input_length"' in text else "jsonl"


def _parsed(path: Path, number: int, line: str, parse: Parse) -> Recorded:
    try:
        return parse(line)
    except (ValueError, OverflowError, RecursionError, csv.Error, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}:{number}: {error}") from None


def _azure(line: str, columns: list[int]) -> Recorded:
    values = next(csv.reader([line]))
    if len(values) <= max(columns):
        raise ValueError(f"{len(values)} values, but the header names more")
    time, context, generated = (values[column].strip() for column in columns)
    moment = datetime.fromisoformat(time)
    at = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return Recorded(at, input_tokens=_tokens(context, "ContextTokens"), max_tokens=_tokens(generated, "GeneratedTokens"))


def _tokens(text: str, column: str) -> int:
    if not (text.isdecimal() and len(text) < 12 and int(text) <= TOKEN_LIMIT):
        raise ValueError(f"{column} {text[:40]!r} is not a count up to {TOKEN_LIMIT}")
    return max(1, int(text))


def _mooncake(line: str, block_tokens: int) -> Recorded:
    found = msgspec.json.decode(line, type=_Mooncake)
    most = math.ceil(found.input_length / block_tokens)
    if len(found.hash_ids) > most:
        raise ValueError(
            f"{len(found.hash_ids)} hash_ids, but {found.input_length} tokens have only {most} blocks of {block_tokens}"
        )
    return Recorded(
        found.timestamp / 1000,
        input_tokens=max(1, found.input_length),
        blocks=tuple(found.hash_ids),
        max_tokens=max(1, found.output_length),
    )


def _own(line: str) -> Recorded:
    found = msgspec.json.decode(line, type=_Line)
    if sum(value is not None for value in (found.messages, found.prompt, found.input_tokens)) != 1:
        raise ValueError("exactly one of messages, prompt and input_tokens is wanted")
    for message in found.messages or []:
        msgspec.convert(message, _Message)
    if taken := sorted(RESERVED & found.body.keys()):
        raise ValueError(f"body must not set {taken[0]!r}")
    return Recorded(
        found.at,
        messages=None if found.messages is None else tuple(found.messages),
        prompt=found.prompt,
        input_tokens=None if found.input_tokens is None else max(1, found.input_tokens),
        max_tokens=found.max_tokens,
        session=None if found.session is None else str(found.session),
        extra=found.body,
    )
