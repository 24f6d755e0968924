"""What a page says in tables and lists: runs, stages, problems, errors, comparisons, facts. It escapes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

from forno.bench import compare_text, measures
from forno.bench.compare import Comparison, Pair
from forno.bench.numbers import plural, short, shown
from forno.bench.records import Result, Run, Summary
from forno.bench.report.series import Load, latency_of

Cell = tuple[str, str]
"""Text and CSS class."""
LONG = 400
"""Characters of a fact."""
MOST_PROBLEMS, MOST_FACTS, EXAMPLES = 12, 60, 3


@dataclass(slots=True)
class Table:
    """Rows of cells; the first of each is its heading."""

    title: str
    header: list[Cell]
    rows: list[list[Cell]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a reader must know: ``invalid`` numbers must not be used, a ``note`` explains."""

    level: str
    text: str


def _plain_cells(*texts: str) -> list[Cell]:
    return [(text, "") for text in texts]


def problems(results: Sequence[Result], names: Sequence[str], loads: Sequence[Load]) -> list[Problem]:
    """The worst first; what several runs have in common is said once."""
    found: dict[tuple[str, str], list[str]] = {}
    for load in loads:
        for run in load.runs:
            where = load.name + (f", repeat {run.repeat}" if len(load.runs) > 1 else "")
            level = "note" if run.summary.valid else "invalid"
            told = run.summary.problems or ([] if run.summary.valid else ["the file does not say why"])
            for text in told:
                found.setdefault((level, short(text, LONG)), []).append(where)
    ordered = sorted(found.items(), key=lambda item: item[0][0] != "invalid")
    listed = [Problem(level, _placed(level, text, places)) for (level, text), places in ordered]
    if len(listed) > MOST_PROBLEMS:
        listed = [*listed[:MOST_PROBLEMS], Problem("note", f"and {len(listed) - MOST_PROBLEMS} more, in the result files")]
    for result, name in zip(results, names, strict=True):
        if result.interrupted:
            who = f"{name}: " if len(results) > 1 else ""
            listed.insert(0, Problem("note", f"{who}interrupted by its user: the last run is a part, later ones are missing"))
    return listed


def _placed(level: str, text: str, places: list[str]) -> str:
    where = "; ".join(places[:3]) + (f"; and {len(places) - 3} more" if len(places) > 3 else "")
    return f"Not valid: {text} ({where})" if level == "invalid" else f"{text[:1].upper()}{text[1:]} ({where})"


def _plain(name: str) -> Callable[[Summary], float | None]:
    return lambda summary: getattr(summary, name)


COLUMNS: tuple[tuple[str, Callable[[Summary], float | None]], ...] = (
    ("Output tok/s", _plain("output_tokens_per_s")),
    ("Requests/s", _plain("requests_per_s")),
    ("TTFT p50, ms", latency_of("ttft", "p50")),
    ("TTFT p99, ms", latency_of("ttft", "p99")),
    ("TPOT p50, ms", latency_of("tpot", "p50")),
    ("TPOT p99, ms", latency_of("tpot", "p99")),
    ("ITL p99, ms", latency_of("itl", "p99")),
    ("E2E p50, ms", latency_of("e2e", "p50")),
    ("E2E p99, ms", latency_of("e2e", "p99")),
    ("Queue p50, ms", latency_of("queue", "p50")),
    ("Goodput, req/s", _plain("goodput_per_s")),
    ("Within SLO", _plain("goodput_share")),
    ("Cached", _plain("cached_share")),
)
"""Of a table of runs; a column without any value is left out."""
OF_STAGES = (
    "Output tok/s",
    "Requests/s",
    "TTFT p50, ms",
    "TTFT p99, ms",
    "TPOT p99, ms",
    "E2E p99, ms",
    "Goodput, req/s",
    "Within SLO",
)
STATISTICS = ("mean", "std", "min", "p50", "p90", "p95", "p99", "max")
DISTRIBUTIONS = (
    ("ttft", "TTFT"),
    ("tpot", "TPOT"),
    ("itl", "ITL"),
    ("e2e", "E2E"),
    ("queue", "Queue"),
    ("client_lag", "Client lag"),
)
SHARES = ("Within SLO", "Cached")


def runs(loads: Sequence[Load]) -> Table:
    """A column per load: means over repeats, with half the 95 % interval where there are several."""
    ordered = sorted(loads, key=lambda load: (load.value, load.words, load.result))
    table = Table("Runs", [("", ""), *((load.name, "" if load.valid else "invalid") for load in ordered)])
    if any(len(load.runs) > 1 for load in loads):
        table.rows.append([("Runs", ""), *((str(len(load.runs)), "n") for load in ordered)])
    failed = [sum(run.summary.failed for run in load.runs) for load in ordered]
    asked = [sum(run.summary.completed for run in load.runs) + bad for load, bad in zip(ordered, failed, strict=True)]
    table.rows.append([("Requests counted", ""), *((f"{count:,}", "n") for count in asked)])
    table.rows.append([("Failed", ""), *((f"{count:,}", "n bad" if count else "n") for count in failed)])
    for title, of in COLUMNS:
        found = [load.over_repeats(of) for load in ordered]
        if any(found):
            cells = found if not ordered[0].source else [(v[0], nan) if v else None for v in found]
            table.rows.append([(title, ""), *((_cell(title, value), "n") for value in cells)])
    return table


def _cell(title: str, found: tuple[float, float] | None) -> str:
    if found is None:
        return "–"
    value, half = found
    if title in SHARES:
        return f"{100 * value:.0f} %"
    return shown(value) if isnan(half) or not value else f"{shown(value)} ± {shown(100 * half / abs(value), 1)} %"


def stages(run: Run) -> Table:
    """A row per step of a load."""
    columns = [(t, of) for t, of in COLUMNS if t in OF_STAGES and any(of(stage.summary) is not None for stage in run.stages)]
    table = Table(
        "Steps of the load", _plain_cells("Step", "From, s", "To, s", "Requests", "Failed", *(title for title, _ in columns))
    )
    for stage in run.stages:
        summary = stage.summary
        asked = summary.completed + summary.failed
        row: list[Cell] = [(short(stage.load, 40), ""), (shown(stage.start), "n"), (shown(stage.end), "n"), (f"{asked:,}", "n")]
        row.append((f"{summary.failed:,}", "n bad" if summary.failed else "n"))
        cells = [(title, of(summary)) for title, of in columns]
        table.rows.append(row + [(_cell(title, None if v is None else (v, nan)), "n") for title, v in cells])
    return table


def errors(loads: Sequence[Load]) -> Table | None:
    """What went wrong, by kind, with examples; None if nothing did."""
    table = Table("Errors", _plain_cells("Kind", "Load", "Requests", "First at, s", "For example"))
    for load in loads:
        kinds: dict[str, list[tuple[float, str]]] = {}
        for request in measures.failed(load.requests):
            kinds.setdefault(short(request.error_kind or "unknown", 30), []).append(
                (request.ended, request.error or "no message")
            )
        for kind, found in sorted(kinds.items()):
            messages = list(dict.fromkeys(short(text, 160) for _, text in found))
            example = " | ".join(messages[:EXAMPLES]) + (
                f" | and {len(messages) - EXAMPLES} other" if len(messages) > EXAMPLES else ""
            )
            first = shown(min(time for time, _ in found))
            table.rows.append([(kind, "bad"), (load.name, ""), (f"{len(found):,}", "n"), (first, "n"), (example, "text")])
    return table if table.rows else None


def compared(pair: Pair, names: Sequence[str]) -> Table:
    """One load of two results."""
    repeats = " and ".join(plural(count, "run") for count in dict.fromkeys(pair.repeats))
    title = f"{short(pair.load)} ({repeats})" + (" – NOT VALID" if any(pair.invalid) else "")
    table = Table(title, _plain_cells("", names[0], names[1], "Difference", "95 % interval", "Larger than the noise?"))
    for row in pair.rows:
        name, a, b, change, interval, verdict = compare_text.cells(row)
        table.rows.append([(name, ""), (a, "n"), (b, "n"), (change, "n"), (interval, "n"), (verdict, row.verdict)])
    return table


def changes(found: Comparison) -> Table:
    """Every metric at every load: how far ``b`` is from ``a``, coloured by whether it is more than noise."""
    table = Table("", [("", ""), *((short(pair.load, 40), "invalid" if any(pair.invalid) else "") for pair in found.pairs)])
    by_metric = [{row.metric: row for row in pair.rows} for pair in found.pairs]
    titles = {row.metric: row.title.removesuffix(", ms") for pair in found.pairs for row in pair.rows}
    for metric, title in titles.items():
        cells: list[Cell] = [(title, "")]
        for rows in by_metric:
            row = rows.get(metric)
            mark = {"better": " ✓", "worse": " ✗", "unknown": " ?"}.get(row.verdict, "") if row else ""
            cells.append((compare_text.cells(row)[3] + mark, f"n {row.verdict}") if row else ("–", "n"))
        table.rows.append(cells)
    return table


def verdict(found: Comparison) -> str:
    """A comparison in a sentence."""
    rows = [row for pair in found.pairs for row in pair.rows]
    count = {name: sum(row.verdict == name for row in rows) for name in ("better", "worse", "noise", "unknown")}
    a, b = found.names
    text = f"{b} against {a}: of {plural(len(rows), 'metric')} over {plural(len(found.pairs), 'load')}, "
    text += f"{count['better']} better, {count['worse']} worse, {count['noise']} not larger than the noise"
    return text + (f", {count['unknown']} cannot be told" if count["unknown"] else "")


def percentiles(load: Load) -> Table:
    """Every distribution of one load: means over repeats, in milliseconds."""
    table = Table("Milliseconds", _plain_cells("Milliseconds", *STATISTICS))
    for name, title in DISTRIBUTIONS:
        found = [load.latency(name, statistic) for statistic in STATISTICS]
        if any(found):
            table.rows.append([(title, ""), *((shown(value[0]) if value else "–", "n") for value in found)])
    return table


def notes(found: Comparison) -> list[str]:
    return compare_text.notes(found)


def definitions(results: Sequence[Result]) -> list[tuple[str, str]]:
    """As the files have them; where they differ, both."""
    found = {(short(k, 40), short(v, LONG)) for result in results for k, v in result.definitions.items()}
    order = {key: i for i, key in enumerate(measures.DEFINITIONS)}
    return sorted(found, key=lambda pair: (order.get(pair[0], len(order)), pair))


def facts(results: Sequence[Result], names: Sequence[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What was asked of which server from where, as far as the files tell."""
    found = []
    for result, name in zip(results, names, strict=True):
        who = f" – {name}" if len(results) > 1 else ""
        general = {"tool": result.tool, "started": result.started, "url": result.url, "model": result.model}
        slo = {metric: f"{shown(limit)} ms" for metric, limit in result.slo.items()}
        parts: list[tuple[str, dict[str, Any]]] = [("Run", {**general}), ("SLO", {**slo})]
        parts += [("Capacity", _without_probes(result.capacity)), ("Workload", result.workload)]
        parts += [("Server", result.server), ("Client", result.client)]
        for title, values in parts:
            if pairs := list(_flat(values)):
                found.append((title + who, pairs[:MOST_FACTS]))
    return found


def _without_probes(capacity: dict[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (capacity or {}).items() if key != "probes"}


def _flat(values: dict[str, Any], before: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """Nested objects as dotted names, three deep."""
    found: list[tuple[str, str]] = []
    for key, value in list(values.items())[:MOST_FACTS]:
        name = short(f"{before}{key}", 60)
        if isinstance(value, dict) and depth < 3:
            found += _flat(value, f"{name}.", depth + 1)
        elif isinstance(value, float):
            found.append((name, shown(value, 4)))
        elif value is not None and value != "":
            found.append((name, short(str(value) if isinstance(value, str | int) else repr(value)[: 4 * LONG], LONG)))
    return found
