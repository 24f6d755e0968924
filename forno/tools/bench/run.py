"""``forno bench``: measure what the options say, print a table, write files. How a load is run is ``forno.bench``'s concern."""

from __future__ import annotations

import argparse
import platform
import resource
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from forno import __version__
from forno.bench import csv, measures
from forno.bench.arrivals import Closed
from forno.bench.bench import Bench, prepare, run_loop
from forno.bench.client import open_session
from forno.bench.extra import need
from forno.bench.numbers import plural
from forno.bench.probe import describe, find_model
from forno.bench.progress import Progress
from forno.bench.records import Result, Run
from forno.bench.table import print_result
from forno.errors import ConfigError, ResultError
from forno.tools.bench.checks import check_writable
from forno.tools.bench.options import add_arguments
from forno.tools.bench.plan import Plan, plan_of
from forno.tools.bench.search import search
from forno.tools.bench.session import INTERRUPTED, console, stop_on_interrupt

__all__ = ["add_arguments", "run"]

OTHER_FILES = 64
"""Open files that are no connections of clients."""


def run(args: argparse.Namespace) -> int:
    """Measure; returns the exit status."""
    plan = plan_of(args)
    _check(plan)
    result = run_loop(lambda: _measure(plan))
    unwritten = [text for path, write in _writers(result, args) if (text := _written(path, write))]
    if args.json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    else:
        print_result(result, console())
    sys.stdout.flush()
    if unwritten:
        raise ResultError("; ".join(unwritten))
    return _status(result, args)


def _check(plan: Plan) -> None:
    """Whatever would be found missing after the measuring is said before it."""
    args = plan.args
    paths = [path for path in (args.output, args.csv, args.csv_requests, args.html) if path is not None]
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError("--output, --csv, --csv-requests and --html need files of their own")
    for path in paths:
        check_writable(path)
    need("aiohttp", *([] if args.json else ["rich"]), *(["matplotlib"] if args.html else []))
    try:
        shlex.join(sys.argv).encode()
    except UnicodeEncodeError:
        raise ConfigError("the command line holds bytes that are not UTF-8 text, and no result file could hold it") from None
    _allow_files(max(load.clients if isinstance(load, Closed) else 0 for load in plan.loads) + OTHER_FILES)


def _allow_files(wanted: int) -> None:
    """Raise the limit of open files as far as one may; ``ConfigError`` where a closed loop would meet it all the same."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > soft:
        soft = max(soft, wanted) if hard == resource.RLIM_INFINITY else hard
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        raise ConfigError(
            f"so many clients need {wanted} open files, and {allowed} are allowed: raise it with ulimit -n {wanted}"
        )


def _writers(result: Result, args: argparse.Namespace) -> list[tuple[Path | None, Callable[[Path], object]]]:
    """Files that are asked for, and what writes them."""

    def html(path: Path) -> None:
        from forno.bench.report import write_html

        write_html([result], path)

    return [
        (args.output, lambda path: path.write_bytes(msgspec.json.encode(result))),
        (args.csv, lambda path: csv.write_csv([result], path)),
        (args.csv_requests, lambda path: csv.write_requests_csv([result], path)),
        (args.html, html),
    ]


def _written(path: Path | None, write: Callable[[Path], object]) -> str:
    """Write a file if it is asked for; returns why it could not be, so that one that fails takes none of the others with it."""
    try:
        if path is not None:
            write(path)
    except OSError as error:
        return f"cannot write {path}: {error.strerror or error}"
    return ""


async def _measure(plan: Plan) -> Result:
    """All runs of a plan, or its search for capacity."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    target = plan.target
    async with open_session(target) as session:
        model = target.model or await find_model(session, target.url)
        server = await describe(session, target.url)
    bench = await prepare(replace(target, model=model), plan.settings, scrape=plan.args.metrics)
    progress = Progress()
    if plan.args.progress:
        bench.watch, bench.finished = progress.begin, progress.report
    stop_on_interrupt(progress, bench.stop, signal.SIGINT, signal.SIGTERM)
    runs: list[Run] = []
    capacity = None
    try:
        if plan.args.find_capacity:
            capacity = await search(plan, bench, runs)
        else:
            await _all_runs(plan, bench, runs)
    finally:
        progress.end()
    return Result(
        tool=f"forno bench {__version__}",
        started=started,
        url=target.url,
        model=model,
        server=server,
        client={"machine": platform.machine(), "system": platform.platform(), "python": platform.python_version()}
        | {"command": shlex.join(_without_key(sys.argv[1:]))},
        workload={**plan.settings.workload.params(), "seed": plan.settings.seed},
        slo=dict(plan.settings.slo),
        definitions=measures.DEFINITIONS,
        runs=runs,
        capacity=capacity,
        interrupted=bench.stopped,
    )


async def _all_runs(plan: Plan, bench: Bench, runs: list[Run]) -> None:
    """Repeats in turns: what drifts meanwhile is spread over all loads."""
    for repeat in range(plan.args.repeats):
        for load in plan.loads:
            runs.append(await bench.measure(load, plan.extent(load), repeat))
            if bench.stopped:
                return


def _without_key(words: list[str]) -> list[str]:
    """The command line without the secret."""
    hidden = [False, *(word == "--api-key" for word in words)]
    return [
        "--api-key=…" if word.startswith("--api-key=") else "…" if hide else word
        for word, hide in zip(words, hidden, strict=False)
    ]


def _status(result: Result, args: argparse.Namespace) -> int:
    """The exit status, and why it is not 0."""
    if result.interrupted:
        return INTERRUPTED
    if result.capacity is not None:
        return 0 if result.capacity["value"] is not None else 1
    failed = sum(r.error is not None and r.error_kind != "cancelled" for run in result.runs for r in run.requests)
    invalid = [run.load for run in result.runs if not run.summary.valid]
    if invalid:
        print(f"forno bench: not valid: {'; '.join(dict.fromkeys(invalid))}", file=sys.stderr)
    if failed > args.max_failures:
        print(f"forno bench: {plural(failed, 'request')} failed", file=sys.stderr)
    return int(bool(invalid) or failed > args.max_failures)
