"""Requests as bars from sent to ended: what each waited for, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forno.bench.measures import ttft
from forno.bench.numbers import shown
from forno.bench.records import RequestRecord, Run
from forno.bench.report import plotting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 60
"""Bars of a figure."""
BAR = 6
"""Pixels of one."""
QUEUED, PREFILL, DECODE = plotting.PALETTE[1], plotting.PALETTE[4], plotting.PALETTE[0]


def shown_requests(run: Run) -> list[RequestRecord]:
    """The requests of the figure, in the order they were sent: those around the slowest first token, if there are too many."""
    ordered = sorted((r for r in run.requests if r.error_kind != "cancelled"), key=lambda r: (r.sent, r.index))
    if len(ordered) <= MOST:
        return ordered
    slowest = max(range(len(ordered)), key=lambda i: (ordered[i].counted, max(ttft(ordered[i]), default=0.0)))
    start = min(max(0, slowest - MOST // 2), len(ordered) - MOST)
    return ordered[start : start + MOST]


def waterfall_figure(run: Run, name: str) -> str:
    """Empty if nothing was sent."""
    requests = shown_requests(run)
    if not requests:
        return ""
    height = 60 + BAR * len(requests) + BAR * 4
    return plotting.draw(lambda figure: _paint(figure, requests), plotting.WIDE, max(height, 140), name)


def parts(r: RequestRecord) -> list[tuple[float, float, str]]:
    """(start, seconds, colour) of each part of a request's bar: in the server's queue, until the first token, decode."""
    first = r.first if r.first is not None else max(r.ended, r.sent)
    last = r.last if r.last is not None else first
    queued = min(max(r.queue_seconds or 0.0, 0.0), max(first - r.sent, 0.0))
    found = [(r.sent, queued, QUEUED), (r.sent + queued, first - r.sent - queued, PREFILL), (first, last - first, DECODE)]
    return [part for part in found if part[1] > 0]


def _paint(figure: Figure, requests: Sequence[RequestRecord]) -> None:
    axis = figure.add_subplot()
    colors = {QUEUED: "////", PREFILL: "", DECODE: ""}
    for color, hatch in colors.items():
        bars = [(y, start, seconds) for y, r in enumerate(requests) for start, seconds, c in parts(r) if c == color]
        if bars:
            rows, starts, widths = zip(*bars, strict=True)
            axis.barh(
                rows,
                widths,
                left=starts,
                height=0.8,
                color=color,
                hatch=hatch,
                edgecolor="white" if hatch else color,
                linewidth=0,
            )
    failed = [(r.ended, y) for y, r in enumerate(requests) if r.error is not None]
    if failed:
        axis.plot(*zip(*failed, strict=True), "x", color=plotting.BAD, markersize=6)
    _frame(axis, requests)


def _frame(axis: Axes, requests: Sequence[RequestRecord]) -> None:
    axis.set_ylim(len(requests) - 0.3, -0.7)
    axis.set_xlabel("seconds since the run's start")
    axis.set_ylabel("requests, as sent")
    axis.set_yticks([])
    axis.grid(axis="y", visible=False)
    plotting.plain(axis, "x")


def headline(run: Run) -> str:
    """Which requests are shown, and what the slowest waited for."""
    requests = shown_requests(run)
    which = f"All {len(requests)} requests" if len(requests) > 1 else "The only request"
    if len(requests) < sum(r.error_kind != "cancelled" for r in run.requests):
        which = f"The {len(requests)} requests around the slowest first token"
    answered = [r for r in requests if r.first is not None]
    if not answered:
        return f"{which}: none was answered"
    worst = max(answered, key=lambda r: (r.counted, ttft(r)[0]))
    text = f"{which}: the slowest waited {shown(ttft(worst)[0])} ms for its first token"
    if worst.queue_seconds is not None and worst.first is not None and worst.first > worst.sent:
        text += f", {100 * min(1.0, worst.queue_seconds / (worst.first - worst.sent)):.0f} % of it in the server's queue"
    return text
