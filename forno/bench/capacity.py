"""The most load that still meets an SLO: growth until it does not, then bisection. It knows a function
that measures, no server.

A probe that is too close to call is measured again, and its requests are pooled, until Wilson's interval (1927) of the share
that met the SLO lies on one side of the wanted share, or patience ends; then the share itself decides, and the probe says so.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any

PATIENCE = 3
"""Measurements of one load at most."""
Z = 1.645
"""Of a one-sided error of 5 %."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one measurement says."""

    met: int
    """Requests that met every limit."""
    total: int
    """Requests measured, failed ones included."""
    fault: str = ""
    """Why the load counts as too much whatever was met, such as a client that could not keep up."""


@dataclass(slots=True)
class Probe:
    """One load, measured once or several times."""

    value: float
    met: int = 0
    total: int = 0
    measurements: int = 0
    passed: bool = False
    close: bool = False
    """Whether patience ended before the interval was on one side."""
    fault: str = ""

    @property
    def share(self) -> float:
        return self.met / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Search:
    """Where to look, and how closely."""

    start: float
    share: float = 0.95
    """Of requests that must meet the SLO."""
    tolerance: float = 0.1
    """The search ends when the lowest failing load is at most this much above the highest passing one."""
    lowest: float = 1 / 64
    highest: float = 4096.0
    whole: bool = False
    """Whether loads are whole numbers: clients."""


@dataclass(slots=True)
class Capacity:
    """What a search found."""

    value: float | None = None
    """The highest load that passed; None if none did."""
    upper: float | None = None
    """The lowest load that failed; None if none did."""
    share: float = 0.95
    tolerance: float = 0.1
    said: str = ""
    """The finding in a sentence."""
    probes: list[Probe] = field(default_factory=list)
    """In the order they were made."""

    def as_dict(self) -> dict[str, Any]:
        """For a result file."""
        return {**asdict(self), "probes": [{**asdict(probe), "share": probe.share} for probe in self.probes]}


def interval(met: int, total: int) -> tuple[float, float]:
    """Wilson's interval of a share."""
    if not total:
        return 0.0, 1.0
    p, z2 = met / total, Z * Z
    middle, half = p + z2 / (2 * total), Z * math.sqrt(p * (1 - p) / total + z2 / (4 * total * total))
    return min(p, (middle - half) / (1 + z2 / total)), max(p, (middle + half) / (1 + z2 / total))


async def find(measure: Callable[[float], Awaitable[Verdict]], search: Search) -> Capacity:
    """Search for the highest load that passes. ``measure`` loads the server with a value and says what was met."""
    found = Capacity(share=search.share, tolerance=search.tolerance)
    value = max(search.lowest, min(search.start, search.highest))
    while True:
        probe = await _probe(measure, value, search)
        found.probes.append(probe)
        if probe.passed:
            found.value = max(value, found.value or 0.0)
        else:
            found.upper = min(value, math.inf if found.upper is None else found.upper)
        following = _next(found, search)
        if following is None:
            found.said = _sentence(found, search)
            return found
        value = following


async def _probe(measure: Callable[[float], Awaitable[Verdict]], value: float, search: Search) -> Probe:
    probe = Probe(value)
    while True:
        verdict = await measure(value)
        probe.met, probe.total, probe.measurements = (
            probe.met + verdict.met,
            probe.total + verdict.total,
            probe.measurements + 1,
        )
        probe.fault = probe.fault or verdict.fault
        low, high = interval(probe.met, probe.total)
        probe.close = low < search.share <= high and not probe.fault
        if not probe.close or probe.measurements == PATIENCE:
            probe.passed = not probe.fault and probe.share >= search.share
            return probe


def _next(found: Capacity, search: Search) -> float | None:
    """The next load to try: doubled while all pass, halved while none does, then between; None when it is found."""
    low, high = found.value, found.upper
    if high is None:
        assert low is not None
        return min(2 * low, search.highest) if low < search.highest else None
    if low is None:
        halved = high / 2 if not search.whole else float(math.floor(high / 2))
        return max(halved, search.lowest) if high > search.lowest else None
    if high <= low * (1 + search.tolerance) or (search.whole and high - low <= 1):
        return None
    middle = math.sqrt(low * high)
    if search.whole:
        return float(min(max(round(middle), math.floor(low) + 1), math.ceil(high) - 1))
    short = float(f"{middle:.4g}")
    return short if low < short < high else middle


def _sentence(found: Capacity, search: Search) -> str:
    unit = "clients" if search.whole else "requests/s"
    percent = f"{100 * search.share:g} % of requests"
    if found.value is None:
        worst = found.probes[-1]
        why = worst.fault or f"{100 * worst.share:.0f} % of {worst.total} requests met it"
        return f"no load meets the SLO for {percent}: at the lowest tried, {worst.value:g} {unit}, {why}"
    if found.upper is None:
        return f"the SLO is met for {percent} up to the highest load tried, {found.value:.4g} {unit}"
    close = (
        " (too close to call with certainty)"
        if any(p.close and p.value in (found.value, found.upper) for p in found.probes)
        else ""
    )
    failed = next(p for p in found.probes if p.value == found.upper)
    why = failed.fault or f"met for {100 * failed.share:.0f} %"
    return f"the SLO is met for {percent} up to {found.value:.4g} {unit}; at {found.upper:.4g} it is not: {why}{close}"
