"""What every comparison here needs: medians and spreads of interleaved samples, who else used the machine, and a table.

Knows no engine.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import processes
from forno.kernels.cpu import cpuinfo

T = TypeVar("T")
TRIES, PATIENCE, MOMENT = 3, 60.0, 0.5
"""Times that a disturbed stretch is measured at most; seconds to wait for others before each, and to look at what they do."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    """Repeats of one number."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Largest minus smallest, as a share of the median."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0


@dataclass(slots=True)
class Results:
    """Samples by (engine, measure), in the order in which they first came."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, engine: str, measured: dict[str, float]) -> None:
        for measure, value in measured.items():
            self.values.setdefault((engine, measure), []).append(value)

    def sample(self, engine: str, measure: str) -> Sample | None:
        values = self.values.get((engine, measure))
        return Sample(tuple(values)) if values else None

    @property
    def engines(self) -> list[str]:
        return list(dict.fromkeys(engine for engine, _ in self.values))

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(measure for _, measure in self.values))

    def as_json(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Measure to engine to median, spread and the values themselves."""
        out: dict[str, dict[str, dict[str, Any]]] = {}
        for (engine, measure), values in self.values.items():
            s = Sample(tuple(values))
            out.setdefault(measure, {})[engine] = {"median": s.median, "spread": round(s.spread, 3), "values": values}
        return out


@dataclass(slots=True)
class Contention:
    """How busy others kept the machine while we measured: a run in which they did says little."""

    allowed: float = math.inf
    """Cores that others may use before a stretch is measured again."""
    seen: list[float] = field(default_factory=list)
    """Cores used by other processes, per stretch that counts."""
    repeated: int = 0
    """Stretches that did not count."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A stretch; whatever this process, its children and theirs do not use is others'. Children may go on after it."""
        started, busy, own = time.perf_counter(), _busy_seconds(), processes.cpu_seconds(os.getpid())
        yield
        wall = time.perf_counter() - started
        used = processes.cpu_seconds(os.getpid()) - own
        self.seen.append(max(0.0, _busy_seconds() - busy - used) / wall)

    def calm(self, measure: Callable[[], T]) -> T:
        """The result of ``measure``, taken while others let us: waits for a quiet moment, and tries again up to ``TRIES``
        times if they came back. The last try counts whatever they did; ``worst`` tells."""
        for attempt in range(TRIES):
            self._wait()
            with self.watched():
                result = measure()
            if self.seen[-1] <= self.allowed or attempt == TRIES - 1:
                return result
            progress(f"other processes used {self.seen.pop():.2f} cores: measuring again")
            self.repeated += 1
        raise AssertionError("unreachable: the last try returns")

    def _wait(self) -> None:
        """Until a moment goes by in which others use no more than allowed, or ``PATIENCE`` is over."""
        deadline = time.monotonic() + PATIENCE
        while self.allowed < math.inf and time.monotonic() < deadline:
            with self.watched():
                time.sleep(MOMENT)
            if self.seen.pop() <= self.allowed:
                return

    @property
    def worst(self) -> float:
        return round(max(self.seen, default=0.0), 2)

    @property
    def mean(self) -> float:
        return round(statistics.fmean(self.seen), 2) if self.seen else 0.0


def _busy_seconds() -> float:
    """CPU seconds that the machine has not been idle, steal included."""
    fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting = fields[3], fields[4]
    return (sum(fields) - idle - waiting) / _TICKS


def interleave(rounds: int, sides: Sequence[tuple[str, Callable[[], T]]]) -> Iterator[tuple[str, T]]:
    """Run every side once per round: ABAB, so that what the machine does to one it does to the other."""
    for number in range(rounds):
        for name, measure in sides:
            progress(f"round {number + 1} of {rounds}: {name}")
            yield name, measure()


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    return {
        "chip": cpuinfo.chip_name(),
        "cores": cpuinfo.cores(),
        "threads": cpuinfo.usable_threads(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%d"),
    }


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, numbers to the right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in lines
    )
