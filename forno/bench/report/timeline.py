"""One run over time: how many requests there were, how many ran and waited, and how long each took to its first token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forno.bench.measures import ttft
from forno.bench.numbers import plural, shown
from forno.bench.records import RequestRecord, Run
from forno.bench.report import plotting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RUNNING, WAITING, FLIGHT = plotting.PALETTE[2], plotting.PALETTE[1], "#b8d8ef"
MOST_POINTS = 600
"""Of a line, and dots of requests."""
EMPTY = 0.5
"""Fewer requests waiting than this: the queue is empty."""
HEIGHT = 360


def timeline_figure(run: Run, name: str, limit: float | None = None) -> str:
    """Two panels over the run's seconds; empty if nothing was sent."""
    if not run.requests and not run.samples:
        return ""
    return plotting.draw(lambda figure: _paint(figure, run, limit), plotting.WIDE, HEIGHT, name)


def in_flight(requests: Sequence[RequestRecord]) -> tuple[list[float], list[int]]:
    """How many requests were sent and not ended, at every change."""
    changes = sorted(
        [(r.sent, 1) for r in requests] + [(max(r.ended, r.sent), -1) for r in requests], key=lambda c: (c[0], -c[1])
    )
    times, counts, now = [0.0], [0], 0
    for time, change in changes:
        now += change
        if time == times[-1]:
            counts[-1] = now
        else:
            times.append(time)
            counts.append(now)
    return times, counts


def _paint(figure: Figure, run: Run, limit: float | None) -> None:
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    end = max([r.ended for r in run.requests] + [s.time for s in run.samples])
    _counts(above, run)
    _first_tokens(below, run, limit)
    for axis in (above, below):
        axis.set_xlim(0, end or 1)
        _shade_outside(axis, run, end)
        for stage in run.stages[1:]:
            axis.axvline(stage.start, color=plotting.MUTED, linewidth=1, linestyle=plotting.dash("4 3"))
    for stage in run.stages if len(run.stages) <= 8 else ():
        middle = (stage.start + min(stage.end, end)) / 2
        if stage.end - stage.start > 0.05 * end:
            above.annotate(
                _stage_name(stage.value),
                (middle, 1.02),
                xycoords=("data", "axes fraction"),
                ha="center",
                fontsize=10,
                color=plotting.MUTED,
            )
    below.set_xlabel("seconds since the run's start")
    plotting.plain(below, "x")


def _stage_name(rate: float) -> str:
    return f"{rate:.3g} requests/s"


def _counts(axis: Axes, run: Run) -> None:
    if run.requests:
        times, counts = thinned(*in_flight(run.requests))
        axis.fill_between(times, counts, step="post", color=FLIGHT, linewidth=0)
    else:
        axis.fill_between(
            [s.time for s in run.samples], [s.in_flight for s in run.samples], step="post", color=FLIGHT, linewidth=0
        )
    for field, color, line in (("running", RUNNING, "-"), ("waiting", WAITING, plotting.dash("6 2"))):
        told = [(s.time, value) for s in run.samples if (value := getattr(s, field)) is not None]
        if told:
            times, values = thinned([t for t, _ in told], [v for _, v in told])
            axis.plot(times, values, color=color, linestyle=line, drawstyle="steps-post", linewidth=1.6)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("requests")
    plotting.plain(axis, "y", whole=True)


def thinned(times: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """A line of few enough points that keeps its peaks: the largest value of each stretch."""
    if len(times) <= MOST_POINTS:
        return list(times), list(values)
    size = -(-len(times) // MOST_POINTS)
    at = [max(range(i, min(i + size, len(times))), key=values.__getitem__) for i in range(0, len(times), size)]
    return [times[i] for i in at], [values[i] for i in at]


def _first_tokens(axis: Axes, run: Run, limit: float | None) -> None:
    """A dot per request at the time it was sent; failed ones as crosses."""
    good = [(r.sent, ttft(r)[0]) for r in run.requests if r.error is None and r.first is not None]
    every = max(1, len(good) // MOST_POINTS)
    dots = sorted(sorted(good, key=lambda d: d[1])[-MOST_POINTS // 10 :] + good[::every])
    if dots:
        x, y = zip(*dots, strict=True)
        axis.scatter(x, y, s=9, color=plotting.PALETTE[0], linewidths=0, alpha=0.7)
        if limit is not None:
            axis.axhline(limit, color=plotting.BAD, linewidth=1.2, linestyle=plotting.dash("4 3"))
        values = [v for _, v in dots if v > 0]
        if values and max(values) > 20 * min(values):
            axis.set_ylim(min(values) * 0.7, max(values) * 1.5)
            plotting.logarithmic(axis, "y")
        else:
            axis.set_ylim(bottom=0)
            plotting.plain(axis, "y")
    bad = [r.sent for r in run.requests if r.error is not None and r.error_kind != "cancelled"]
    if bad:
        axis.plot(bad, [0.04] * len(bad), "x", color=plotting.BAD, markersize=6, transform=axis.get_xaxis_transform())
    axis.set_ylabel("TTFT, ms")


def _shade_outside(axis: Axes, run: Run, end: float) -> None:
    """Grey where nothing counted: warm-up and drain-down."""
    start, stop = run.window
    if stop <= start:
        return
    for low, high in ((0.0, start), (stop, end)):
        if high - low > 0.002 * end:
            axis.axvspan(low, high, color="#6e7781", alpha=0.13, linewidth=0)


def headline(run: Run) -> str:
    """What is seen: how many there were at most, and what a surge left behind."""
    counts = in_flight(run.requests)[1] if run.requests else [s.in_flight for s in run.samples]
    text = f"At most {plural(max(counts, default=0), 'request')} in flight"
    waiting = max((s.waiting or 0 for s in run.samples), default=0)
    running = max((s.running or 0 for s in run.samples), default=0)
    if any(s.waiting is not None for s in run.samples):
        text += f"; the server ran up to {shown(running)} and let up to {shown(waiting)} wait"
    return text + _after_surge(run)


def _after_surge(run: Run) -> str:
    """How long the queue of the busiest stage lasted after it, where the server tells its queue."""
    if len(run.stages) < 2:
        return ""
    surge = max(run.stages[:-1], key=lambda stage: stage.value)
    if surge.value <= run.stages[-1].value:
        return ""
    after = [s for s in run.samples if s.time >= surge.end and s.waiting is not None]
    if not after or (after[0].waiting or 0) < EMPTY:
        return "; no queue outlasted the surge" if after else ""
    cleared = next((s.time for s in after if (s.waiting or 0) < EMPTY), None)
    if cleared is None:
        return "; the queue of the surge was not empty before the end"
    return f"; the queue of the surge took {shown(cleared - surge.end, 2)} s to empty"
