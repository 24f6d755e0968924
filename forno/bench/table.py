"""Results for people: a table with a column per load, what its numbers mean, and what went wrong. It computes means only.

Repeats of a load share a column: mean and half the width of its 95 % interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from forno.bench.numbers import listed, short, shown
from forno.bench.records import Distribution, Result, Summary
from forno.bench.statistics import confidence

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS, COLUMN_WIDTH, LABEL_WIDTH = 6, 20, 26
"""Loads beside each other at most, more go into further tables; characters of one, and of the labels before them."""
LABELS = {
    "output_tokens_per_s": "output tok/s",
    "total_tokens_per_s": "total tok/s",
    "requests_per_s": "requests/s",
    "goodput_per_s": "goodput/s",
    "goodput_share": "within SLO",
    "cached_share": "cached prompt",
}
_PERCENTILES = {"ttft": ("mean", "p50", "p90", "p99"), "tpot": ("mean", "p50", "p99"), "itl": ("mean", "p50", "p99", "max")}
_PERCENTILES |= {"e2e": ("p50", "p99"), "queue": ("p50", "p99"), "client_lag": ("p99",)}
_SHARES = ("goodput_share", "cached_share")
Column = tuple[str, Sequence[Summary]]
"""Heading, and the summaries that it is the mean of."""


def columns_of(result: Result) -> list[Column]:
    """A column per load, in order of first runs (those of a search by load), and one per step of a load that has several."""
    columns: list[Column] = []
    groups = list(result.loads.items())
    for load, runs in sorted(groups, key=lambda group: group[1][0].value) if result.capacity else groups:
        columns.append((load, [run.summary for run in runs]))
        for number, stage in enumerate(runs[0].stages):
            columns.append((stage.load, [run.stages[number].summary for run in runs if number < len(run.stages)]))
    return columns


def rows_of(columns: Sequence[Column], slo: dict[str, float]) -> list[tuple[str, str, list[str]]]:
    """(metric, statistic, a cell per column); rows without any number are left out."""
    rows: list[tuple[str, str, list[str]]] = [
        ("requests", "counted", [_count(sum(s.completed for s in summaries)) for _, summaries in columns]),
    ]
    if any(s.failed for _, summaries in columns for s in summaries):
        rows.append(("", "failed", [_count(sum(s.failed for s in summaries)) for _, summaries in columns]))
    for name, label in LABELS.items():
        scale, unit = (100, " %") if name in _SHARES else (1, "")
        rows.append((label, "", [_mean(summaries, _rate(name), scale, unit) for _, summaries in columns]))
    for name, statistics in _PERCENTILES.items():
        label = label_of(name)
        for number, statistic in enumerate(statistics):
            cells = [_mean(summaries, _statistic(name, statistic)) for _, summaries in columns]
            rows.append((f"{label}, ms" if not number else "", statistic, cells))
    return [row for row in rows if any(cell != "–" for cell in row[2])]


def label_of(metric: str) -> str:
    """A metric's name for people."""
    return LABELS.get(metric, metric.upper() if len(metric) <= 4 else metric.replace("_", " "))


def _rate(name: str) -> Callable[[Summary], float | None]:
    """A run that answered nothing has none."""
    return lambda summary: getattr(summary, name) if summary.completed else None


def _statistic(name: str, statistic: str) -> Callable[[Summary], float | None]:
    def read(summary: Summary) -> float | None:
        distribution: Distribution | None = getattr(summary, f"{name}_ms")
        return None if distribution is None else float(getattr(distribution, statistic))

    return read


def _mean(summaries: Sequence[Summary], read: Callable[[Summary], float | None], scale: float = 1, unit: str = "") -> str:
    values = [scale * value for summary in summaries if (value := read(summary)) is not None]
    if not values:
        return "–"
    mean, half = confidence(values)
    return shown(mean) + (f" ± {shown(half, 2)}" if isfinite(half) else "") + unit


def _count(value: int) -> str:
    return f"{value:,}"


def print_result(result: Result, console: Console) -> None:
    """The tables, the definitions, and the problems."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text.assemble((short(result.model), "bold"), f" at {short(result.url)}"))
    console.print(Text(f"{result.workload.get('name', 'load')}: {listed(result.workload)}", style="dim"))
    columns = columns_of(result)
    beside = max(1, min(COLUMNS, (console.width - LABEL_WIDTH) // COLUMN_WIDTH))
    for start in range(0, len(columns), beside):
        part = columns[start : start + beside]
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("")
        table.add_column("")
        for heading, _ in part:
            table.add_column(heading, justify="right", max_width=COLUMN_WIDTH - 2)
        for metric, statistic, cells in rows_of(part, result.slo):
            table.add_row(metric, Text(statistic, style="dim"), *cells)
        console.print()
        console.print(table)
    _print_notes(result, console)


def _print_notes(result: Result, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    if result.slo:
        console.print(f"\nSLO: {', '.join(f'{k} at most {v:g} ms' for k, v in result.slo.items())}", highlight=False)
    if result.capacity:
        console.print(Text.assemble(("Capacity:", "bold"), f" {result.capacity['said']}"))
    definitions = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    definitions.add_column(style="dim", no_wrap=True)
    definitions.add_column(style="dim")
    for name, text in result.definitions.items():
        if result.slo or not name.startswith("goodput"):
            definitions.add_row(label_of(name), text)
    console.print()
    console.print(definitions)
    for text, loads in problems_of(result).items():
        console.print(Text(f"\n! {text}" + (f" [{'; '.join(loads)}]" if loads else ""), style="yellow"), end="")
    console.print()


def problems_of(result: Result) -> dict[str, list[str]]:
    """Problem -> the loads that have it; empty if all have."""
    found: dict[str, list[str]] = {}
    for run in result.runs:
        for problem in run.summary.problems:
            loads = found.setdefault(problem, [])
            if run.load not in loads:
                loads.append(run.load)
    everywhere = len({run.load for run in result.runs})
    return {text: [] if len(loads) == everywhere else loads for text, loads in found.items()}
