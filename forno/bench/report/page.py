"""The page: what it says of one or several results, in order. It decides what is shown; ``page.html`` says how.

Whatever comes from a file goes through the template's escaping, or into a figure as plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forno.bench.compare import compare
from forno.bench.numbers import plural, short
from forno.bench.records import Result
from forno.bench.report import latency, load, tables, timeline, waterfall
from forno.bench.report.series import Load, loads_of, spread, unit
from forno.errors import ResultError

MOST_TIMELINES = 6
"""Loads whose course is drawn."""
OPEN_TIMELINES = 2
"""Of those, shown without a click."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture with a title that says what is seen in it."""

    title: str
    svg: str
    caption: str = ""
    kind: str = ""
    """``wide``, or empty for one of a grid."""


@dataclass(slots=True)
class Course:
    """One run over time."""

    title: str
    figures: list[Figure]
    stages: tables.Table | None
    is_open: bool


@dataclass(slots=True)
class Page:
    """Everything that the template prints."""

    title: str
    subtitle: str
    headline: str
    problems: list[tables.Problem]
    legend: list[tuple[str, str, str]]
    """(name, colour, dash) of the lines that distributions are drawn with."""
    sources: list[tuple[str, str, str]]
    """The same of results, where there are several."""
    runs: tables.Table
    repeats: bool
    percentiles: tables.Table | None = None
    """Where there is only one load."""
    tradeoff: list[Figure] = field(default_factory=list)
    distributions: list[tuple[str, list[Figure]]] = field(default_factory=list)
    courses: list[Course] = field(default_factory=list)
    errors: tables.Table | None = None
    comparison: tables.Table | None = None
    comparison_details: list[tables.Table] = field(default_factory=list)
    comparison_notes: list[str] = field(default_factory=list)
    definitions: list[tuple[str, str]] = field(default_factory=list)
    facts: list[tuple[str, list[tuple[str, str]]]] = field(default_factory=list)


def write_html(results: Sequence[Result], path: str | Path, names: Sequence[str] = ()) -> None:
    """Write one page about the results; ``names`` tell several apart. Raises ``ConfigError`` without matplotlib."""
    Path(path).write_text(as_html(results, names), encoding="utf-8")


def as_html(results: Sequence[Result], names: Sequence[str] = ()) -> str:
    """The page as text."""
    if not results:
        raise ResultError("no results: name at least one file of `forno bench --json`")
    return render("page.html", page=page_of(results, [short(name, 40) for name in names] or _numbered(results)))


def render(template: str, **values: Any) -> str:
    """A template of this package with everything escaped but figures."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("forno.bench", "report")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(template).render(**values)


def _numbered(results: Sequence[Result]) -> list[str]:
    return [f"result {i + 1}" for i in range(len(results))]


def page_of(results: Sequence[Result], names: Sequence[str]) -> Page:
    """What the page says."""
    loads = loads_of(results, names)
    slo, capacity = _common_slo(results), _capacity(results)
    page = Page(
        title=_title(results),
        subtitle=_subtitle(results),
        headline=load.tradeoff_headline(loads),
        problems=tables.problems(results, names, loads),
        legend=_legend(loads),
        sources=_legend([x for x in loads if x.source]),
        runs=tables.runs(loads),
        repeats=any(len(x.runs) > 1 and not x.source for x in loads),
        percentiles=tables.percentiles(loads[0]) if len(loads) == 1 else None,
        errors=tables.errors(loads),
        definitions=tables.definitions(results),
        facts=tables.facts(results, names),
    )
    page.tradeoff = _tradeoff(loads, slo, capacity)
    page.distributions = _distributions(loads, slo)
    page.courses = _courses(loads, results)
    if len(results) == 2:
        _compare(page, results, names)
    return page


def _legend(loads: Sequence[Load]) -> list[tuple[str, str, str]]:
    """Lines of distributions: loads, or results where there are several."""
    return list(
        dict.fromkeys(
            (x.source or x.label, x.color, x.dash) for x in (loads if any(x.source for x in loads) else spread(loads))
        )
    )


def _title(results: Sequence[Result]) -> str:
    models = list(dict.fromkeys(short(result.model, 50) for result in results))
    workloads = list(dict.fromkeys(short(str(result.workload.get("name", "")), 30) for result in results))
    return f"{' and '.join(models[:3])}: {' and '.join(w for w in workloads[:3] if w) or 'benchmark'}"


def _subtitle(results: Sequence[Result]) -> str:
    runs = sum(len(result.runs) for result in results)
    requests = sum(run.summary.completed + run.summary.failed for result in results for run in result.runs)
    when = ", ".join(short(result.started, 25) for result in results[:3])
    where = ", ".join(dict.fromkeys(short(result.url, 60) for result in results[:3]))
    return f"{plural(runs, 'run')}, {plural(requests, 'request')} counted · {when} · {where}"


def _common_slo(results: Sequence[Result]) -> dict[str, float]:
    """The limits, if all results have the same."""
    return results[0].slo if all(result.slo == results[0].slo for result in results) else {}


def _capacity(results: Sequence[Result]) -> float | None:
    found = results[0].capacity if len(results) == 1 else None
    value = found.get("value") if found else None
    return float(value) if isinstance(value, int | float) and 0 < value < 1e9 else None


def _tradeoff(loads: Sequence[Load], slo: dict[str, float], capacity: float | None) -> list[Figure]:
    figures = []
    marks = "Circles, solid: median. Triangles, dashed: 99th percentile. Numbers: the load"
    marks += f" ({unit(loads)})." if any(x.label != loads[0].label for x in loads) else "."
    marks += " Bars: least and most of the repeats." if any(len(x.runs) > 1 for x in loads) else ""
    for metric in ("ttft", "tpot", "e2e"):
        if svg := load.tradeoff_figure(metric, loads, slo.get(metric), f"t{metric}"):
            told = "" if loads[0].source else f": {load.latency_headline(metric, loads, slo.get(metric))}"
            figures.append(Figure(f"{latency.TITLES[metric]} against throughput{told}", svg, marks))
    if svg := load.goodput_figure(loads, capacity, "good"):
        figures.append(
            Figure(
                "Goodput against load" if loads[0].source else load.goodput_headline(loads),
                svg,
                "Circles, solid: requests that met the SLO. Triangles, dashed: all.",
            )
        )
    return figures


def _distributions(loads: Sequence[Load], slo: dict[str, float]) -> list[tuple[str, list[Figure]]]:
    """One set of curves; with several results, one per load, so that results are held against each other."""
    groups: dict[str, list[Load]] = {"": list(loads)}
    if len({x.result for x in loads}) > 1:
        groups = {x.label: [y for y in loads if y.words == x.words] for x in loads}
    found = []
    for number, (name, group) in enumerate(groups.items()):
        figures = [
            Figure(f"{title}: {latency.headline(metric, group, slo.get(metric))}", svg)
            for metric, title in latency.TITLES.items()
            if (svg := latency.cdf_figure(metric, group, slo.get(metric), f"d{number}{metric}"))
        ]
        if figures:
            found.append((name, figures))
    return found


def _courses(loads: Sequence[Load], results: Sequence[Result]) -> list[Course]:
    """The first repeat of each load over time, those with stages first and else the highest."""
    told = [x for x in loads if x.runs[0].requests or x.runs[0].samples]
    ranked = sorted(told, key=lambda x: (bool(x.runs[0].stages), x.value), reverse=True)
    courses = []
    for number, x in enumerate(sorted(ranked[:MOST_TIMELINES], key=ranked.index)):
        run, limit = x.runs[0], results[x.result].slo.get("ttft")
        figures = [
            Figure(
                timeline.headline(run),
                timeline.timeline_figure(run, f"c{number}", limit),
                _timeline_caption(run.stages != []),
                "wide",
            ),
            Figure(waterfall.headline(run), waterfall.waterfall_figure(run, f"w{number}"), "", "wide"),
        ]
        title = x.name + (f", repeat {run.repeat}" if len(x.runs) > 1 else "")
        stages = tables.stages(run) if run.stages else None
        courses.append(Course(title, [f for f in figures if f.svg], stages, number < OPEN_TIMELINES))
    return courses


def _timeline_caption(staged: bool) -> str:
    text = "Above: requests in flight. Below: a dot per request, at the time it was sent; crosses failed. Grey is not counted"
    return text + ("; vertical lines are where the load changes." if staged else ".")


def _compare(page: Page, results: Sequence[Result], names: Sequence[str]) -> None:
    try:
        found = compare(results[0], results[1], (names[0], names[1]))
    except ResultError as error:
        page.comparison_notes = [str(error)]
        return
    page.headline = tables.verdict(found)
    page.comparison = tables.changes(found)
    page.comparison_details = [tables.compared(pair, names) for pair in found.pairs]
    page.comparison_notes = tables.notes(found)
    page.problems += [tables.Problem("note", text) for text in found.warnings if "not valid" not in text]
