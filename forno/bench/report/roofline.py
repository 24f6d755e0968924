"""A server's steps on the roofline of its machine (Williams et al., 2009), from the JSON of ``/debug/state``.

A step is a point: how much arithmetic it did per byte of memory traffic, and how much per second. No point can lie above the
roof of the unit and the memory that it used; what it waited for is its colour. It knows that JSON, nothing of the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from math import atan2, degrees, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forno.bench.numbers import plural, short, shown
from forno.bench.report import plotting, tables
from forno.bench.report.page import Figure, render
from forno.bench.statistics import finite, percentile
from forno.errors import ResultError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNITS = {"int8": ("int8", "op/s"), "bf16": ("bf16", "FLOP/s"), "fp32": ("fp32", "FLOP/s")}
MEMORIES = {"dram": "DRAM", "l3": "L3"}
LABELS = {
    "weights": (plotting.PALETTE[0], "o", "reading weights"),
    "kv": (plotting.PALETTE[2], "s", "reading keys and values"),
    "compute": (plotting.PALETTE[1], "^", "arithmetic"),
    "overhead": (plotting.PALETTE[3], "D", "overhead beside the kernels"),
    "starved": ("#000000", "x", "cores that others had"),
}
"""Label of a step -> colour, marker, what it waited for."""
MOST_POINTS = 2000
"""Steps that are asked for and drawn."""
LIMIT = 64 << 20
"""Bytes of a state."""
TIMEOUT = 10.0
HEIGHT = 460


@dataclass(frozen=True, slots=True)
class Point:
    """One step: work per byte and per second, and what is known of it."""

    intensity: float
    rate: float
    label: str
    seconds: float
    share: float | None = None
    """Of the roofline."""
    predicted: float | None = None


def read_state(source: str, api_key: str = "") -> dict[str, Any]:
    """``/debug/state`` of the server at a URL, or from a file. Raises ``ResultError``."""
    try:
        state = json.loads(_fetch(source, api_key) if source.startswith(("http://", "https://")) else _load(source))
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{short(source, 80)} is no JSON of /debug/state: {short(str(error), 120)}") from None
    except (OSError, HTTPException) as error:
        raise ResultError(f"cannot read {short(source, 80)}: {short(str(error) or type(error).__name__, 120)}") from None
    if not isinstance(state, dict):
        raise ResultError(f"{short(source, 80)} is no JSON of /debug/state: it holds no object")
    return state


def _fetch(url: str, api_key: str) -> bytes:
    from urllib.request import Request, urlopen

    where = url if "/debug/state" in url else f"{url.rstrip('/').removesuffix('/v1')}/debug/state?steps={MOST_POINTS}"
    request = Request(where, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    with urlopen(request, timeout=TIMEOUT) as response:
        return _limited(response.read(LIMIT + 1), url)


def _load(path: str) -> bytes:
    if not Path(path).is_file():
        raise ResultError(f"{short(path, 80)} is no file; give the URL of a server, or a file with its /debug/state")
    with Path(path).open("rb") as file:
        return _limited(file.read(LIMIT + 1), path)


def _limited(data: bytes, source: str) -> bytes:
    if len(data) > LIMIT:
        raise ResultError(f"{short(source, 80)} is larger than {LIMIT >> 20} MiB")
    return data


def ceilings_of(state: Mapping[str, Any]) -> dict[str, float]:
    """Operations or bytes per second by unit and memory, those that are known. Raises ``ResultError`` without any of a kind."""
    told = state.get("ceilings")
    found = {name: value for name in (*UNITS, *MEMORIES) if (value := _positive(told, name)) is not None}
    if not (found.keys() & UNITS.keys() and found.keys() & MEMORIES.keys()):
        raise ResultError(
            "the server does not know its machine's ceilings: it needs a peak and a bandwidth (see `forno doctor`)"
        )
    return found


def points_of(state: Mapping[str, Any]) -> list[Point]:
    """The steps whose work is known. Raises ``ResultError`` if there is none."""
    steps = state.get("steps")
    found = [point for step in (steps if isinstance(steps, list) else []) if (point := _point(step)) is not None]
    if not found:
        raise ResultError("the server tells of no step with its work: send it requests first, and leave its recorder on")
    return found


def _point(step: Any) -> Point | None:
    flops, moved, seconds = (_positive(step, name) for name in ("flops", "bytes", "seconds"))
    intensity = _positive(step, "intensity") or (flops / moved if flops and moved else None)
    if flops is None or seconds is None or intensity is None:
        return None
    label = step.get("label")
    label = label if isinstance(label, str) and label in LABELS else ""
    return Point(intensity, flops / seconds, label, seconds, _positive(step, "share"), _positive(step, "predicted"))


def _positive(values: Any, name: str) -> float | None:
    """A number above zero and within reason, else None."""
    value = values.get(name) if isinstance(values, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 1e-12 < value < 1e24 and isfinite(value) else None


def roofline_figure(ceilings: Mapping[str, float], points: Sequence[Point], name: str = "roof") -> str:
    """SVG: work per byte against work per second, both logarithmic, under the roofs of ``ceilings``."""
    return plotting.draw(lambda figure: _paint(figure.add_subplot(), dict(ceilings), points), plotting.WIDE, HEIGHT, name)


def _paint(axis: Axes, ceilings: dict[str, float], points: Sequence[Point]) -> None:
    units = {unit: ceilings[unit] for unit in UNITS if unit in ceilings}
    memories = {memory: ceilings[memory] for memory in MEMORIES if memory in ceilings}
    peak, slowest = max(units.values()), min(memories.values())
    low = min([p.intensity for p in points] + [peak / slowest / 30]) / 2
    high = max([p.intensity for p in points] + [peak / slowest]) * 4
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(low, high)
    axis.set_ylim(min([p.rate for p in points] + [slowest * low]) / 1.6, peak * 2.2)
    for memory, bandwidth in memories.items():
        knee = peak / bandwidth
        axis.plot(
            [low, knee], [low * bandwidth, peak], color=plotting.INK, linewidth=1.4, linestyle="-" if memory == "dram" else "--"
        )
    for unit, rate in units.items():
        start = rate / max(memories.values())
        axis.plot([start, high], [rate, rate], color=plotting.INK, linewidth=1.4 if rate == peak else 0.9)
        text = f"{UNITS[unit][0]}: {quantity(rate)}{UNITS[unit][1]}"
        axis.annotate(text, (high, rate), xytext=(-4, 3), textcoords="offset points", ha="right", fontsize=10)
    _scatter(axis, points)
    axis.set_xlabel("arithmetic intensity, FLOP per byte of memory traffic")
    axis.set_ylabel("FLOP/s")
    _ticks(axis)
    _name_memories(axis, memories, low)


def _scatter(axis: Axes, points: Sequence[Point]) -> None:
    every = max(1, len(points) // MOST_POINTS)
    for label in (*LABELS, ""):
        some = [p for p in points[::every] if p.label == label]
        if some:
            color, marker, _ = LABELS.get(label, (plotting.MUTED, ".", ""))
            edge: dict[str, Any] = {} if marker == "x" else {"edgecolors": "white", "linewidths": 0.4}
            x, y = [p.intensity for p in some], [p.rate for p in some]
            axis.scatter(x, y, s=26, c=color, marker=marker, alpha=0.8, zorder=3, **edge)


def _ticks(axis: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for line, form in ((axis.xaxis, plotting.tick), (axis.yaxis, lambda value, place=None: quantity(value))):
        line.set_major_locator(LogLocator(10))
        line.set_major_formatter(FuncFormatter(form))
        line.set_minor_formatter(NullFormatter())


def _name_memories(axis: Axes, memories: dict[str, float], low: float) -> None:
    """Names along the slopes, turned as they are once the axes have their place."""
    figure = axis.get_figure()
    assert figure is not None
    figure.draw_without_rendering()  # type: ignore[union-attr]
    bottom = axis.get_ylim()[0]
    for memory, bandwidth in memories.items():
        start = max(low, bottom / bandwidth) * 1.15
        (x0, y0), (x1, y1) = axis.transData.transform([(start, start * bandwidth), (start * 10, start * 10 * bandwidth)])
        angle = degrees(atan2(y1 - y0, x1 - x0))
        text = f"{MEMORIES[memory]}: {quantity(bandwidth)}B/s"
        place: dict[str, Any] = {"rotation": angle, "rotation_mode": "anchor", "va": "bottom", "fontsize": 10}
        axis.annotate(text, (start, start * bandwidth), xytext=(0, 2), textcoords="offset points", **place)


def quantity(value: float) -> str:
    """A number with its prefix: ``71 G``."""
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{shown(value / scale, 3)} {prefix}"
    return f"{shown(value, 3)} "


def headline(points: Sequence[Point]) -> str:
    """What the steps waited for, by their time, and how near they came."""
    total = sum(p.seconds for p in points)
    spent = sorted(((sum(p.seconds for p in points if p.label == label) / total, label) for label in LABELS), reverse=True)
    told = [f"{100 * share:.0f} % for {LABELS[label][2]}" for share, label in spent if share >= 0.005]
    text = f"{shown(total)} s in {plural(len(points), 'step')} waited {', '.join(told[:3]) or 'for what is not known'}"
    shares = [p.share for p in points if p.share is not None]
    return text + (f"; the median step reached {100 * percentile(shares, 0.5):.0f} % of its roof" if shares else "")


def roofline_page(state: Mapping[str, Any]) -> str:
    """A page of its own, as self-contained as a report. Raises ``ResultError`` for a state without steps or ceilings."""
    ceilings, points = ceilings_of(state), points_of(state)
    title = headline(points)
    caption = (
        "Each point is a step of the engine. Sloped lines: what memory can feed; flat lines: what the units can compute. "
        "Points above the DRAM line read part of their bytes from caches."
    )
    figure = Figure(title, roofline_figure(ceilings, points), caption, "wide")
    legend = [(what, color, marker) for label, (color, marker, what) in LABELS.items() if any(p.label == label for p in points)]
    model = short(str(state.get("model", "")), 60) or "Server"
    return render("roofline.html", title=f"{model} on the roofline", figure=figure, legend=legend, table=by_label(points))


def by_label(points: Sequence[Point]) -> tables.Table:
    """What the steps of each label took."""
    header: tuple[str, ...] = ("Waited for", "Steps", "Seconds", "Share of time", "FLOP/byte, median", "Of the roof, median")
    header += ("Measured / predicted, median",)
    table = tables.Table("Steps", [(text, "") for text in header])
    total = sum(p.seconds for p in points)
    for label in (*LABELS, ""):
        some = [p for p in points if p.label == label]
        if not some:
            continue
        seconds = sum(p.seconds for p in some)
        share = percentile([p.share for p in some if p.share is not None], 0.5)
        residual = percentile([p.seconds / p.predicted for p in some if p.predicted is not None], 0.5)
        cells = [
            f"{len(some):,}",
            shown(seconds),
            f"{100 * seconds / total:.0f} %",
            shown(percentile([p.intensity for p in some], 0.5)),
        ]
        cells += [f"{100 * share:.0f} %" if finite(share) else "–", shown(residual)]
        table.rows.append([(LABELS[label][2] if label else "unknown", ""), *((text, "n") for text in cells)])
    return table


def write_roofline(source: str, path: str | Path, api_key: str = "") -> None:
    """Write the page of a server (its URL) or of a file with its ``/debug/state``."""
    Path(path).write_text(roofline_page(read_state(source, api_key)), encoding="utf-8")
