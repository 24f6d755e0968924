"""What a run does now, on stderr: a line that is rewritten in a terminal, else a plain line every few seconds.

It reads what a run has gathered, from a task of the same event loop, and is brief: whatever time it takes is lag of the load.
"""

from __future__ import annotations

import asyncio
import sys
from math import inf
from time import perf_counter
from typing import TextIO

from forno.bench.load import Extent, Gathered
from forno.bench.measures import itl, ttft
from forno.bench.numbers import short
from forno.bench.records import Run
from forno.bench.statistics import percentile

LIVE_SECONDS, PLAIN_SECONDS = 0.5, 5.0
LOAD_WIDTH = 40
RECENT = 64
"""Requests that the running percentiles are of: the last that ended."""
_CLEAR = "\r\x1b[2K"


class Progress:
    """Shows one run after the other."""

    def __init__(self, out: TextIO | None = None, width: int = 0) -> None:
        self._out = out or sys.stderr
        self._live = self._out.isatty()
        self._width = width
        self._task: asyncio.Task[None] | None = None

    def begin(self, load: str, extent: Extent, got: Gathered) -> None:
        """Show this run until ``end``."""
        self.end()
        self._task = asyncio.create_task(self._show(load, got, extent))

    def end(self) -> None:
        """The run is over."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            if self._live:
                self._out.write(_CLEAR)
                self._out.flush()

    def report(self, run: Run) -> None:
        """A run is over: its numbers in a line that stays."""
        self.end()
        summary = run.summary
        parts = [f"{summary.output_tokens_per_s:.0f} tok/s"]
        for name, found in (("TTFT", summary.ttft_ms), ("ITL", summary.itl_ms)):
            parts += [f"{name} p50 {found.p50:.0f} p99 {found.p99:.0f} ms"] if found else []
        if summary.goodput_share is not None:
            parts.append(f"{100 * summary.goodput_share:.0f} % within the SLO")
        parts.append(f"{summary.completed} counted" + (f", {summary.failed} FAILED" if summary.failed else ""))
        self.say(f"{run.load}: {' · '.join(parts)}" + ("" if summary.valid else " · NOT VALID"))

    def say(self, text: str) -> None:
        """A line that stays."""
        self._out.write((_CLEAR if self._live else "") + text + "\n")
        self._out.flush()

    async def _show(self, load: str, got: Gathered, extent: Extent) -> None:
        started = perf_counter()
        while True:
            await asyncio.sleep(LIVE_SECONDS if self._live else PLAIN_SECONDS)
            text = line(load, got, extent, perf_counter() - started)
            self._out.write(_CLEAR + text[: self._columns() - 1] if self._live else text + "\n")
            self._out.flush()

    def _columns(self) -> int:
        from shutil import get_terminal_size

        return self._width or get_terminal_size().columns


def line(load: str, got: Gathered, extent: Extent, elapsed: float) -> str:
    """The state of a run in one line."""
    recent = [r for r in got.ended_requests[-RECENT:] if r.error is None]
    failed = sum(r.error is not None for r in got.ended_requests)
    parts = [short(load, LOAD_WIDTH), f"{elapsed:.0f} s", _phase(got, extent)]
    if got.samples:
        sample = got.samples[-1]
        told = [f"{n:.0f} {what}" for what in ("running", "waiting") if (n := getattr(sample, what)) is not None]
        parts.append(f"{sample.in_flight} in flight" + (f" ({', '.join(told)})" if told else ""))
    first = [value for r in recent for value in ttft(r)]
    gaps = [value for r in recent for value in itl(r)]
    for name, values in (("TTFT", first), ("ITL", gaps)):
        if values:
            parts.append(f"{name} p50 {percentile(values, 0.5):.0f} p99 {percentile(values, 0.99):.0f} ms")
    span = recent[-1].ended - recent[0].ended if len(recent) > 1 else 0.0
    if span > 0:
        parts.append(f"{sum(r.output_tokens for r in recent[1:]) / span:.0f} tok/s")
    return " · ".join(parts + ([f"{failed} FAILED"] if failed else []))


def _phase(got: Gathered, extent: Extent) -> str:
    if got.opened is None:
        return "warm-up"
    counted = sum(r.counted for r in got.ended_requests)
    return f"{counted}/{extent.requests:.0f} counted" if extent.requests < inf else f"{counted} counted"
