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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from forno.config import EngineConfig, ServerConfig
from forno.errors import ConfigError, FornoError, RequestError
from forno.options import add_options, from_args
from forno.server.app import ENDPOINTS
from forno.server.build import ENGINE_OPTIONS, engine_config, open_serving
from forno.server.endpoint import Endpoint
from forno.server.errors import HttpError, bad_json, describe
from forno.server.respond import Body
from forno.server.serving import Serving
from forno.server.wire import ErrorResponse

URLS = {e.path: e for e in ENDPOINTS if e.path in ("/v1/chat/completions", "/v1/completions")}


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
    add_options(parser, *ENGINE_OPTIONS)


def run(args: argparse.Namespace) -> int:
    """0 if every line was answered, 1 if some answers are errors."""
    config = engine_config(args)
    lines = read_lines(Path(args.input))
    output = Path(args.output)
    counts = Counts(total=len(lines))
    done = finished_ids(output)
    todo = [line for line in lines if line.custom_id not in done]
    counts.skipped = len(lines) - len(todo)
    if todo:
        width = args.concurrency or 2 * config.scheduler.max_num_seqs
        asyncio.run(_run_all(config, from_args(ServerConfig, args), todo, output, width, counts))
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
    if not path.exists():
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
        if good < path.stat().st_size:
            _check_only_tail(path, file, good)
            file.truncate(good)
    return found


def _record(text: bytes) -> str | None:
    try:
        record = json.loads(text) if text.endswith(b"\n") else None
    except ValueError:
        return None
    return record.get("custom_id") if isinstance(record, dict) and isinstance(record.get("custom_id"), str) else None


def _check_only_tail(path: Path, file: IO[bytes], good: int) -> None:
    """Refuse to cut a file that is not ours: only a last, unfinished line may be dropped."""
    file.seek(good)
    if b"\n" in file.read().rstrip(b"\n"):
        raise ConfigError(f"{path} exists and is no batch output (see its byte {good}): name another file, or remove it")


async def _run_all(
    config: EngineConfig, server: ServerConfig, todo: list[Line], path: Path, width: int, counts: Counts
) -> None:
    from tqdm import tqdm

    serving, _ = open_serving(config, server)
    serving.engine.start()
    pending: Iterator[Line] = iter(todo)
    try:
        with path.open("ab") as file, tqdm(total=len(todo), unit="req", file=sys.stderr, disable=None) as bar:

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
    except* OSError as group_error:
        first = group_error.exceptions[0]
        raise ConfigError(f"cannot write {path}: {first}; what was written is whole, run again to continue") from group_error
    finally:
        await serving.engine.stop()


def _append(file: IO[bytes], record: bytes) -> None:
    """Write one whole line and push it to the disk, so that a kill after it cannot lose it."""
    file.write(record + b"\n")
    file.flush()
    os.fsync(file.fileno())


async def answer(serving: Serving, line: Line) -> tuple[int, bytes]:
    """Status and output record of one request; never raises for the request's own faults."""
    try:
        status, body = 200, await _call(serving, URLS[line.url], bytes(line.body))
    except (FornoError, HttpError) as error:
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
    try:
        body = msgspec.json.decode(raw, type=endpoint.body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise bad_json(error) from error
    if body.stream:
        raise RequestError("a batch cannot stream: leave stream out", "stream")
    response: Any = await endpoint.handler(serving, body, {})
    result = await response.work
    assert isinstance(result, Body)
    return result.content
