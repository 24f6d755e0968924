"""What a page draws lines of: the loads of each result, with a short name, a colour and a dash. It draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forno.bench.numbers import short
from forno.bench.records import Distribution, RequestRecord, Result, Run, Summary
from forno.bench.report.plotting import DASHES, PALETTE, sequence
from forno.bench.statistics import confidence

MOST_LINES = 8
"""In one figure."""


@dataclass(frozen=True, slots=True)
class Load:
    """One load of one result, all its repeats."""

    result: int
    """Which result, from 0."""
    source: str
    """The result's name, where there are several; else empty."""
    words: str
    """The load as the file has it."""
    label: str
    """The same, short."""
    value: float
    runs: list[Run]
    color: str
    dash: str = ""

    @property
    def name(self) -> str:
        """For legends: load and source."""
        return f"{self.label} – {self.source}" if self.source else self.label

    @property
    def valid(self) -> bool:
        return all(run.summary.valid for run in self.runs)

    @property
    def requests(self) -> list[RequestRecord]:
        return [request for run in self.runs for request in run.requests]

    def over_repeats(self, of: Callable[[Summary], float | None]) -> tuple[float, float] | None:
        """Mean and half-width of its 95 % interval (nan for one run); None where it was not measured."""
        found = [value for run in self.runs if (value := of(run.summary)) is not None]
        return confidence(found) if found else None

    def span(self, of: Callable[[Summary], float | None]) -> tuple[float, float] | None:
        """Least and most over the repeats; None with fewer than two."""
        found = [value for run in self.runs if (value := of(run.summary)) is not None]
        return (min(found), max(found)) if len(found) > 1 else None

    def latency(self, metric: str, statistic: str) -> tuple[float, float] | None:
        """The same of a statistic of a distribution, in milliseconds."""

        return self.over_repeats(latency_of(metric, statistic))


def latency_of(metric: str, statistic: str) -> Callable[[Summary], float | None]:
    """Takes a statistic of a distribution, in milliseconds, from a summary."""

    def of(summary: Summary) -> float | None:
        found: Distribution | None = getattr(summary, f"{metric}_ms")
        return None if found is None else float(getattr(found, statistic))

    return of


def loads_of(results: Sequence[Result], names: Sequence[str]) -> list[Load]:
    """Every load of every result. One result has a colour per load, darkest for the least; of several, each has a colour."""
    words = [run.load for result in results for run in result.runs]
    grouped = [result.loads for result in results]
    found = []
    for i, loads in enumerate(grouped):
        ordered = sorted(loads, key=lambda load: loads[load][0].value)
        shades = dict(zip(ordered, sequence(len(ordered)), strict=True))
        for load, runs in loads.items():
            alone = len(results) == 1
            color = shades[load] if alone else PALETTE[i % len(PALETTE)]
            dash = "" if alone else DASHES[i // len(PALETTE) % len(DASHES)]
            source = "" if alone else names[i]
            found.append(Load(i, source, load, _label(load, words), runs[0].value, runs, color, dash))
    return found


def _label(load: str, all_words: Sequence[str]) -> str:
    """A load without its kind, such as ``closed, ``, where all are of one kind."""
    kinds = {words.split(", ")[0] for words in all_words}
    return short(load.split(", ", 1)[-1] if len(kinds) == 1 else load, 80)


def unit(loads: Sequence[Load]) -> str:
    """What the loads' value counts: ``clients`` or ``requests/s``."""
    return "clients" if all("client" in load.words for load in loads) else "requests/s"


def spread(loads: Sequence[Load], most: int = MOST_LINES) -> list[Load]:
    """At most so many, the first and the last among them."""
    if len(loads) <= most:
        return list(loads)
    return [loads[round(i * (len(loads) - 1) / (most - 1))] for i in range(most)]
