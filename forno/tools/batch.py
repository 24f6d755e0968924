"""``forno batch``: OpenAI batch files, JSONL in and JSONL out, through the same handlers as the server, without HTTP.

The output file is its own journal: a line is written once, whole, when its request has finished, and a later run
skips every custom_id that is there. A line cut short by a kill is dropped and computed again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import msgspec

from forno.config import ENGINE_PARTS, EngineConfig, ServerConfig
from forno.engine.build import engine_config_of
from forno.errors import ConfigError, FornoError, RequestError
from forno.options import add_options
from forno.server.app import ENDPOINTS
from forno.server.build import open_serving
from forno.server.decode import BodyDecoder
from forno.server.endpoint import Call, Endpoint
from forno.server.errors import HttpError, describe
from forno.server.respond import Body
from forno.server.serving import Serving
from forno.server.wire import ErrorResponse

QUEUE_OPTIONS = ("max_num_queued_reqs", "max_num_queued_tokens")
"""A batch bounds its queue itself, by ``--concurrency``."""
URLS = {e.path: e for e in ENDPOINTS if e.path in ("/v1/chat/completions", "/v1/completions")}


RECORD_START = b'{"id":"batch_req_'


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """One request of a batch file."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


@dataclass(slots=True)
class Counts:
    """What became of the lines."""

    total: int = 0
    skipped: int = 0
    ok: int = 0
    failed: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("input", help="Batch file: one JSON object a line with custom_id, method, url and body.")
    parser.add_argument("output", help="Result file; a run that finds it continues where it stopped.")
    parser.add_argument("--concurrency", type=int, default=0, help="Requests in flight (default: 0: twice --max-num-seqs).")
    parser.add_argument("--json", action="store_true", help="Print the counts as JSON on stdout.")
    add_options(parser, *ENGINE_PARTS.values(), skip=QUEUE_OPTIONS)


def run(args: argparse.Namespace) -> int:
    """0 if every line was answered, 1 if some answers are errors."""
    if args.concurrency < 0:
        raise ConfigError(f"--concurrency must not be negative, got {args.concurrency}")
    config = engine_config_of(args)
    config = replace(config, scheduler=replace(config.scheduler, max_num_queued_reqs=0, max_num_queued_tokens=0))
    lines = read_lines(Path(args.input))
    output = Path(args.output)
    if output.exists() and output.samefile(args.input):
        raise ConfigError(f"{output} is the input: name another file for the results")
    counts = Counts(total=len(lines))
    done = finished_ids(output)
    todo = [line for line in lines if line.custom_id not in done]
    counts.skipped = len(lines) - len(todo)
    if todo:
        width = args.concurrency or 2 * config.scheduler.max_num_seqs
        asyncio.run(_run_all(config, todo, output, width, counts))
    summary = {
        "total": counts.total,
        "skipped": counts.skipped,
        "ok": counts.ok,
        "failed": counts.failed,
        "output": str(output),
    }
    text = "{total} requests: {skipped} were done before, {ok} answered, {failed} failed; results in {output}".format(**summary)
    print(json.dumps(summary) if args.json else text, file=sys.stdout if args.json else sys.stderr)
    return 1 if counts.failed else 0


def read_lines(path: Path) -> list[Line]:
    """All requests of a batch file; a malformed line is refused with its number before anything runs."""
    decoder = msgspec.json.Decoder(Line)
    lines: dict[str, Line] = {}
    try:
        raw = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    for number, text in enumerate(raw, 1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RequestError(f"{path}, line {number}: {error}") from error
        if line.method != "POST" or line.url not in URLS:
            raise RequestError(
                f"{path}, line {number}: {line.method} {line.url} is not offered; use POST to {' or '.join(URLS)}"
            )
        if line.custom_id in lines:
            raise RequestError(f"{path}, line {number}: custom_id {line.custom_id!r} was used before; ids must be unique")
        lines[line.custom_id] = line
    return list(lines.values())


def finished_ids(path: Path) -> set[str]:
    """Ids of the whole lines in an output file; what a kill left after the last whole line is cut off the file."""
    if not path.is_file():  # not there yet, or something like /dev/stdout
        return set()
    found: set[str] = set()
    good = 0
    with path.open("r+b") as file:
        for text in file:
            record = _record(text)
            if record is None:
                break
            found.add(record)
            good += len(text)
        file.seek(good)
        tail = file.read()
        if not _is_cut_short(tail):
            raise ConfigError(f"{path} exists and is no batch output (see its byte {good}): name another file, or remove it")
        file.truncate(good)
    return found


def _record(text: bytes) -> str | None:
    try:
        record = json.loads(text) if text.endswith(b"\n") else None
    except ValueError:
        return None
    if not isinstance(record, dict) or "response" not in record:
        return None
    id = record.get("custom_id")
    return id if isinstance(id, str) else None


def _is_cut_short(tail: bytes) -> bool:
    """Whether what follows the last whole record may be dropped: the start of one of our own, or nothing."""
    return b"\n" not in tail and (tail.startswith(RECORD_START) or RECORD_START.startswith(tail))


async def _run_all(config: EngineConfig, todo: list[Line], path: Path, width: int, counts: Counts) -> None:
    from tqdm import tqdm

    serving, _ = open_serving(config, ServerConfig())
    serving.engine.start()
    pending: Iterator[Line] = iter(todo)
    try:
        with path.open("ab", buffering=0) as file, tqdm(total=len(todo), unit="req", file=sys.stderr, disable=None) as bar:

            async def worker() -> None:
                for line in pending:
                    status, record = await answer(serving, line)
                    _append(file, record)
                    counts.ok += status == 200
                    counts.failed += status != 200
                    bar.update()

            async with asyncio.TaskGroup() as group:
                for _ in range(min(width, len(todo))):
                    group.create_task(worker())
            if path.is_file():
                os.fsync(file.fileno())
    except* OSError as group:
        error: Any = group.exceptions[0]
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise ConfigError(f"cannot write {path}: {error.strerror}; run again to continue with what is there") from error
    finally:
        await serving.engine.stop()


def _append(file: IO[bytes], record: bytes) -> None:
    """Write one line. The kernel has it then, so that our own death cannot lose it; a part of it is cut off at resuming."""
    rest = memoryview(record + b"\n")
    while rest:
        rest = rest[file.write(rest) :]


async def answer(serving: Serving, line: Line) -> tuple[int, bytes]:
    """Status and output record of one request; never raises for the request's own faults."""
    try:
        status, body = 200, await _call(serving, URLS[line.url], bytes(line.body))
    except (FornoError, HttpError, RecursionError) as error:
        status, described, _ = describe(error)
        body = msgspec.json.encode(ErrorResponse(error=described))
    record: dict[str, Any] = {
        "id": f"batch_req_{line.custom_id}",
        "custom_id": line.custom_id,
        "response": {"status_code": status, "request_id": line.custom_id, "body": msgspec.Raw(body)},
        "error": None,
    }
    return status, msgspec.json.encode(record)


async def _call(serving: Serving, endpoint: Endpoint, raw: bytes) -> bytes:
    body = BodyDecoder(endpoint.body).decode(raw)
    if body.stream:
        raise RequestError("a batch cannot stream: leave stream out", "stream")
    response: Any = await endpoint.handler(serving, body, Call(len(raw)))
    result = await response.work
    assert isinstance(result, Body)
    return result.content
