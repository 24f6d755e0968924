"""``forno bench``: measure what the options say, print a table, write files. How a load is run is ``forno.bench``'s concern."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from forno import __version__
from forno.bench import measures
from forno.bench.bench import Bench, prepare, run_loop
from forno.bench.client import open_session
from forno.bench.extra import need
from forno.bench.probe import describe, find_model
from forno.bench.progress import Progress
from forno.bench.records import Result, Run
from forno.bench.table import print_result
from forno.errors import ConfigError
from forno.tools.bench.options import add_arguments
from forno.tools.bench.plan import Plan, plan_of
from forno.tools.bench.search import search
from forno.tools.bench.session import INTERRUPTED, console, stop_on_interrupt

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    """Measure; returns the exit status."""
    plan = plan_of(args)
    need("aiohttp", *([] if args.json else ["rich"]), *(["matplotlib"] if args.html else []))
    for path in (args.output, args.csv, args.html):
        _check_writable(path)
    result = run_loop(lambda: _measure(plan))
    if args.output:
        args.output.write_bytes(msgspec.json.encode(result))
    if args.json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    else:
        print_result(result, console())
    _write_others(result, args)
    return _status(result, args)


def _check_writable(path: Path | None) -> None:
    """Before the measuring, not after it."""
    if path is not None and (path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK)):
        raise ConfigError(f"cannot write {path}: is there a directory {path.parent}, and may you write in it?")


def _write_others(result: Result, args: argparse.Namespace) -> None:
    if args.csv:
        from forno.bench.csv import write_csv

        write_csv([result], args.csv)
    if args.html:
        from forno.bench.report import write_html

        write_html([result], args.html)


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
    stop_on_interrupt(progress, bench.stop)
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
        print(f"forno bench: not valid: {', '.join(dict.fromkeys(invalid))}", file=sys.stderr)
    if failed > args.max_failures:
        print(f"forno bench: {failed} requests failed", file=sys.stderr)
    return int(bool(invalid) or failed > args.max_failures)
