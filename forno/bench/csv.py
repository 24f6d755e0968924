"""Results as tables of comma-separated values: a row per run, or a row per request. It computes nothing new."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from forno.bench import measures
from forno.bench.records import Distribution, RequestRecord, Result, Run, Summary

ERROR_KINDS = ("connect", "status", "timeout", "dropped", "bad_stream", "server_error", "empty", "cancelled")
_RUN = ("file", "started", "model", "workload", "load", "value", "repeat", "seed")
_DISTRIBUTIONS = tuple(n for n, kind in get_type_hints(Summary).items() if Distribution in get_args(kind))
_PLAIN = tuple(n for n in Summary.__struct_fields__ if n not in (*_DISTRIBUTIONS, "errors", "problems"))
_STATISTICS = Distribution.__struct_fields__
_REQUEST = tuple(n for n in RequestRecord.__struct_fields__ if n not in ("gaps", "chunk_tokens"))
_MEASURED = ("ttft", "tpot", "e2e")

RUN_COLUMNS = (
    *_RUN,
    *_PLAIN,
    *(f"{name}_{statistic}" for name in _DISTRIBUTIONS for statistic in _STATISTICS),
    *(f"errors_{kind}" for kind in ERROR_KINDS),
    "problems",
)
REQUEST_COLUMNS = ("file", "load", "value", "repeat", *_REQUEST, *(f"{name}_ms" for name in _MEASURED), "itl_max_ms", "chunks")


def write_csv(results: Sequence[Result], path: str | Path, names: Sequence[str] = ()) -> None:
    """A row per run. ``names`` tell the results apart in the column ``file``; without them they are numbered.

    What was not measured is an empty cell, never zero.
    """
    _write(path, RUN_COLUMNS, (_run_row(name, result, run) for name, result in _named(results, names) for run in result.runs))


def write_requests_csv(results: Sequence[Result], path: str | Path, names: Sequence[str] = ()) -> None:
    """A row per request of every run, counted or not."""
    rows = (
        _request_row(name, run, request)
        for name, result in _named(results, names)
        for run in result.runs
        for request in run.requests
    )
    _write(path, REQUEST_COLUMNS, rows)


def _named(results: Sequence[Result], names: Sequence[str]) -> Iterable[tuple[str, Result]]:
    return zip(names or [str(i + 1) for i in range(len(results))], results, strict=True)


def _run_row(name: str, result: Result, run: Run) -> dict[str, Any]:
    summary = run.summary
    row: dict[str, Any] = {
        "file": name,
        "started": result.started,
        "model": result.model,
        "workload": result.workload.get("name", ""),
        **{n: getattr(run, n) for n in ("load", "value", "repeat", "seed")},
        **{n: getattr(summary, n) for n in _PLAIN},
        **{f"errors_{kind}": summary.errors.get(kind, 0) for kind in ERROR_KINDS},
        "problems": "; ".join(summary.problems),
    }
    for field in _DISTRIBUTIONS:
        if (found := getattr(summary, field)) is not None:
            row |= {f"{field}_{statistic}": getattr(found, statistic) for statistic in _STATISTICS}
    return row


def _request_row(name: str, run: Run, request: RequestRecord) -> dict[str, Any]:
    row: dict[str, Any] = {"file": name, "load": run.load, "value": run.value, "repeat": run.repeat}
    row |= {n: getattr(request, n) for n in _REQUEST}
    for metric in _MEASURED:
        row |= {f"{metric}_ms": value for value in measures.OF_REQUEST[metric](request)}
    gaps = measures.OF_REQUEST["itl"](request)
    return row | {"itl_max_ms": max(gaps) if gaps else None, "chunks": len(request.gaps) + (request.first is not None)}


def _write(path: str | Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({column: _cell(value) for column, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets a quote in front: a server's messages must not run there."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value
