"""Distributions of latencies as curves: which share of requests had their answer by when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forno.bench import measures
from forno.bench.numbers import shown
from forno.bench.report import plotting
from forno.bench.report.series import Load, spread
from forno.bench.statistics import ranked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Inter-token latency",
    "e2e": "End-to-end latency",
}
POINTS = 200
"""Of a curve."""
LEFT = 0.05
"""Share of a curve from whose half the axis begins: chunks that came in one packet have almost no gap."""
LOGARITHMIC = 20
"""Ratio of the largest to the smallest value drawn from which the axis is logarithmic."""


def cdf_figure(metric: str, loads: Sequence[Load], limit: float | None, name: str) -> str:
    """One curve per load, repeats pooled; empty if nothing was measured."""
    curves = [(load, curve) for load in spread(loads) if (curve := _curve(load, metric))]
    if not curves:
        return ""
    of = "gaps" if metric == "itl" else "requests"
    return plotting.draw(lambda figure: _paint(figure, curves, limit, of), name=name)


def _curve(load: Load, metric: str) -> tuple[list[float], list[float]] | None:
    """Milliseconds and shares, few enough points."""
    ordered = sorted(measures.values(measures.succeeded(load.requests), metric))
    if not ordered:
        return None
    shares = (
        [i / POINTS for i in range(POINTS + 1)]
        if len(ordered) > POINTS
        else [i / len(ordered) for i in range(len(ordered) + 1)]
    )
    return [ranked(ordered, share) for share in shares], shares


def _paint(figure: Figure, curves: list[tuple[Load, tuple[list[float], list[float]]]], limit: float | None, of: str) -> None:
    axis = figure.add_subplot()
    for load, (values, shares) in curves:
        axis.plot(
            values, [100 * s for s in shares], color=load.color, linestyle=plotting.dash(load.dash), drawstyle="steps-post"
        )
    low = min(ranked(values, LEFT) for _, (values, _) in curves) / 2
    high = max(values[-1] for _, (values, _) in curves)
    if limit is not None:
        high = max(high, limit * 1.15)
        low = min(low, limit * 0.9)
        axis.axvline(limit, color=plotting.BAD, linewidth=1.4, linestyle=plotting.dash("4 3"))
        place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "bottom"}
        axis.annotate(f"SLO {shown(limit)} ms", (limit, 1.0), color=plotting.BAD, fontsize=10, **place)
    axis.set_ylim(0, 102)
    if high > LOGARITHMIC * max(low, 1e-3):
        axis.set_xlim(max(low, high / 1e5) * 0.9, high * 1.1)
        plotting.logarithmic(axis, "x")
    else:
        axis.set_xlim(0, high * 1.04 or 1)
        plotting.plain(axis, "x")
    axis.set_yticks([0, 25, 50, 75, 90, 100])
    axis.set_xlabel("ms")
    axis.set_ylabel(f"% of {of}")


def headline(metric: str, loads: Sequence[Load], limit: float | None) -> str:
    """What the curves show, in a sentence."""
    told = [
        (load, p50[0], p99[0])
        for load in loads
        if (p50 := load.latency(metric, "p50")) and (p99 := load.latency(metric, "p99"))
    ]
    if not told:
        return "not measured"
    if len(told) == 1:
        text = f"half within {shown(told[0][1])} ms, 99 % within {shown(told[0][2])} ms"
    else:
        first, last = min(told, key=lambda t: t[2]), max(told, key=lambda t: t[2])
        text = f"99 % within {shown(first[2])} ms {_where(first[0])}, {shown(last[2])} ms {_where(last[0])}"
    if limit is None:
        return text
    kept = [_kept(load, metric, limit) for load, _, _ in told]
    share = f"{100 * min(kept):.0f} %" if max(kept) - min(kept) < 0.005 else f"{100 * min(kept):.0f} to {100 * max(kept):.0f} %"
    return f"{text}; {share} within the limit"


def _where(load: Load) -> str:
    return f"({load.source})" if load.source else f"at {load.label}"


def _kept(load: Load, metric: str, limit: float) -> float:
    """Share of answered requests whose worst value kept the limit."""
    found = [values for r in measures.succeeded(load.requests) if (values := measures.OF_REQUEST[metric](r))]
    return sum(max(values) <= limit for values in found) / len(found) if found else 1.0
