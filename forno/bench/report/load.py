"""What more load brings: throughput against latency, and goodput against load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forno.bench.numbers import shown
from forno.bench.records import Summary
from forno.bench.report import plotting
from forno.bench.report.series import Load, latency_of, unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEAR = 14
"""Pixels between two labels."""
FALLEN = 0.9
"""Of the highest throughput: below it has fallen again."""
FLAT = 0.95
"""Of the highest throughput: from there on it has levelled off."""


def by_result(loads: Sequence[Load]) -> list[list[Load]]:
    """The loads of each result, least first."""
    groups: dict[int, list[Load]] = {}
    for load in loads:
        groups.setdefault(load.result, []).append(load)
    return [sorted(group, key=lambda load: load.value) for group in groups.values()]


def tokens(load: Load) -> float:
    """Output tokens per second, the mean over repeats."""
    found = load.over_repeats(lambda summary: summary.output_tokens_per_s)
    return found[0] if found else 0.0


def tradeoff_figure(metric: str, loads: Sequence[Load], limit: float | None, name: str) -> str:
    """Throughput against the median and the 99th percentile of a latency; empty with fewer than two points."""
    groups = [[load for load in group if load.latency(metric, "p99")] for group in by_result(loads)]
    if sum(map(len, groups)) < 2:
        return ""

    def paint(figure: Figure) -> None:
        axis = figure.add_subplot()
        for group in groups:
            for statistic, marker, line in (("p50", "o", "-"), ("p99", "^", plotting.dash("5 3"))):
                _line(axis, group, metric, statistic, marker, line)
        if limit is not None:
            axis.axhline(limit, color=plotting.BAD, linewidth=1.2, linestyle=plotting.dash("4 3"))
            axis.annotate(
                "SLO",
                (0.01, limit),
                xycoords=("axes fraction", "data"),
                ha="left",
                va="bottom",
                color=plotting.BAD,
                fontsize=10,
            )
        least, most = min(map(tokens, loads)), max(map(tokens, loads))
        axis.set_xlim(0 if least < most / 2 else 0.9 * least, 1.06 * most or 1)
        axis.margins(y=0.15)
        axis.set_xlabel("output tokens/s")
        axis.set_ylabel("ms")
        plotting.plain(axis, "x")
        plotting.logarithmic(axis, "y")
        for group in groups:
            _name_points(axis, group, metric)

    return plotting.draw(paint, name=name)


def _line(axis: Axes, group: Sequence[Load], metric: str, statistic: str, marker: str, line: Any) -> None:
    points = [(load, tokens(load), found[0]) for load in group if (found := load.latency(metric, statistic))]
    color = group[0].color if group and group[0].source else plotting.PALETTE[0 if statistic == "p50" else 1]
    axis.plot([x for _, x, _ in points], [y for _, _, y in points], color=color, linestyle=line, marker=marker, markersize=5)
    of = latency_of(metric, statistic)
    _bars(axis, [(x, *ends) for load, x, _ in points if (ends := load.span(of))], color)


def _bars(axis: Axes, bars: Sequence[tuple[float, float, float]], color: str) -> None:
    """(x, least y, most y)."""
    if bars:
        x, low, high = zip(*bars, strict=True)
        axis.vlines(x, low, high, color=color, linewidth=1)


def _name_points(axis: Axes, group: Sequence[Load], metric: str) -> None:
    """Loads above their points, where they do not stand in each other's way."""
    taken: list[tuple[float, float]] = []
    of = latency_of(metric, "p99")
    for load in group:
        top = (load.span(of) or (0.0, 0.0))[1] or (load.over_repeats(of) or (0.0, 0.0))[0]
        across, up = axis.transData.transform((tokens(load), top))
        if all(abs(across - a) > NEAR or abs(up - b) > NEAR for a, b in taken):
            taken.append((across, up))
            place: dict[str, Any] = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center"}
            axis.annotate(f"{load.value:g}", (tokens(load), top), fontsize=10, color=plotting.MUTED, **place)


def tradeoff_headline(loads: Sequence[Load]) -> str:
    """Where throughput levels off, in a sentence."""
    told = []
    for group in by_result(loads):
        highest = max(group, key=tokens)
        first = next(load for load in group if tokens(load) >= FLAT * tokens(highest))
        where = f"{shown(tokens(highest))} output tokens/s"
        who = f"{highest.source}: " if highest.source else ""
        if len(group) < 2:
            told.append(f"{who}{where} at {highest.label}")
        elif first is group[-1]:
            told.append(f"{who}throughput still grows at the highest load: {where} at {highest.label}")
        else:
            told.append(f"{who}throughput levels off from {first.label} on, at {where}{_fall(group, highest)}")
    return _doubt(loads) + ("; ".join(told) if loads[0].source else _upper("; ".join(told)))


def _fall(group: Sequence[Load], highest: Load) -> str:
    """That too much load takes throughput away again, if it does."""
    last = group[-1]
    return f", and falls to {shown(tokens(last))} at {last.label}" if tokens(last) < FALLEN * tokens(highest) else ""


def _doubt(loads: Sequence[Load]) -> str:
    """That numbers must not be used, before them."""
    bad = sum(not load.valid for load in loads)
    if not bad:
        return ""
    return "NOT VALID, do not use these numbers. " if bad == len(loads) else "Some loads are NOT VALID. "


def latency_headline(metric: str, loads: Sequence[Load], limit: float | None) -> str:
    """How one result's 99th percentile goes with throughput, in words that follow the latency's name."""
    (group,) = by_result(loads)
    rated = [(load, found[0]) for load in group if (found := load.latency(metric, "p99"))]
    if not rated:
        return "not measured"
    (first, low), (last, high) = rated[0], rated[-1]
    if limit is None:
        told = f"p99 from {shown(low)} ms at {first.label}"
        return f"{told} to {shown(high)} ms at {last.label}" if len(rated) > 1 else f"p99 {shown(low)} ms"
    kept = [value <= limit for _, value in rated]
    if all(kept) or not any(kept):
        return f"p99 {'keeps' if all(kept) else 'is over'} the SLO at every load"
    if any(kept[kept.index(False) :]):
        return f"p99 keeps the SLO at {sum(kept)} of {len(kept)} loads"
    return f"p99 keeps the SLO up to {rated[kept.index(False) - 1][0].label}"


def goodput_figure(loads: Sequence[Load], capacity: float | None, name: str) -> str:
    """Requests per second, all and those that met the SLO, against the load; empty without an SLO or with one load."""
    groups = [[load for load in group if load.over_repeats(_goodput)] for group in by_result(loads)]
    if sum(map(len, groups)) < 2:
        return ""

    def paint(figure: Figure) -> None:
        axis = figure.add_subplot()
        for group in groups:
            _rates(axis, group)
        if capacity is not None:
            axis.axvline(capacity, color=plotting.MUTED, linewidth=1.2, linestyle=plotting.dash("4 3"))
            axis.annotate(
                "capacity",
                (capacity, 0.02),
                xycoords=("data", "axes fraction"),
                xytext=(3, 0),
                textcoords="offset points",
                fontsize=10,
            )
        axis.set_ylim(bottom=0)
        axis.set_xlim(left=0)
        axis.margins(x=0.05)
        axis.set_xlabel(f"load, {unit(loads)}")
        axis.set_ylabel("requests/s")
        plotting.plain(axis, "x", "y")
        axis.set_xticks(_apart([load.value for load in loads]))

    return plotting.draw(paint, name=name)


def _apart(values: Sequence[float]) -> list[float]:
    """The loads as ticks, those left out that would stand too near to a larger one."""
    found: list[float] = []
    for value in sorted(set(values), reverse=True):
        if not found or found[-1] - value > 0.06 * found[0]:
            found.append(value)
    return found[::-1]


def _rates(axis: Axes, group: Sequence[Load]) -> None:
    x = [load.value for load in group]
    color = group[0].color if group and group[0].source else plotting.PALETTE[2]
    everything = [load.over_repeats(lambda summary: summary.requests_per_s) or (0.0, 0.0) for load in group]
    good = [load.over_repeats(_goodput) or (0.0, 0.0) for load in group]
    other = color if group and group[0].source else plotting.MUTED
    axis.plot(x, [v for v, _ in everything], color=other, linestyle=plotting.dash("5 3"), marker="^", markersize=5)
    axis.plot(x, [v for v, _ in good], color=color, marker="o", markersize=5)
    _bars(axis, [(load.value, *ends) for load in group if (ends := load.span(_goodput))], color)


def goodput_headline(loads: Sequence[Load]) -> str:
    """Where goodput is highest and what is left of it at the highest load."""
    told = []
    for group in by_result(loads):
        rated = [(load, found[0]) for load in group if (found := load.over_repeats(_goodput))]
        if not rated:
            continue
        best, rate = max(rated, key=lambda pair: pair[1])
        who = f"{best.source}: " if best.source else ""
        last, left = rated[-1]
        if rate == 0:
            told.append(f"{who}no request met the SLO at any load")
        elif last is best:
            told.append(f"{who}goodput still grows at the highest load: {shown(rate)} requests/s at {best.label}")
        else:
            told.append(
                f"{who}goodput is highest at {best.label}, {shown(rate)} requests/s; at {last.label} it is {shown(left)}"
            )
    return "; ".join(told) if loads[0].source else _upper("; ".join(told))


def _goodput(summary: Summary) -> float | None:
    return summary.goodput_per_s


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
