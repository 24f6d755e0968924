"""Two results side by side: each metric, how far apart, and whether that is larger than the noise.

Runs of equal load are compared. Where both have repeats, the noise is theirs; else it is estimated within the single runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import msgspec

from forno.bench import bootstrap, measures
from forno.bench.metrics import met
from forno.bench.numbers import plural, short
from forno.bench.records import RequestRecord, Result, Run, Summary
from forno.bench.statistics import Difference, finite, mean, multiplied, paired, welch
from forno.errors import ResultError

FEWEST_PAIRS = 4
"""Repeats from which pairing them by seed gains more, as a rule, than its halved degrees of freedom cost."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Something of a summary that two runs are compared in."""

    name: str
    title: str
    lower: bool
    """Whether less is better."""
    of: Callable[[Summary], float | None]
    values: Callable[[RequestRecord], list[float]] | None = None
    """A request's values, if it is a statistic of requests."""
    share: float | None = None
    """Its percentile; None: the mean."""
    chosen: Callable[[list[RequestRecord]], list[RequestRecord]] = measures.succeeded
    """Requests that have values."""
    amounts: Callable[[RequestRecord], list[tuple[float, float]]] | None = None
    """When a request adds how much, if it is a rate."""


def _latency(name: str, title: str, statistic: str) -> Metric:
    def of(summary: Summary) -> float | None:
        found = getattr(summary, f"{name}_ms")
        return None if found is None else float(getattr(found, statistic))

    share = int(statistic[1:]) / 100
    return Metric(f"{name}_{statistic}_ms", f"{title} {statistic}, ms", True, of, measures.OF_REQUEST[name], share)


def _rate(name: str, title: str, amounts: Callable[[RequestRecord], list[tuple[float, float]]] | None) -> Metric:
    return Metric(name, title, False, lambda summary: getattr(summary, name), amounts=amounts)


def _failed_share(summary: Summary) -> float | None:
    asked = summary.completed + summary.failed
    return summary.failed / asked if asked else None


def _counted(requests: list[RequestRecord]) -> list[RequestRecord]:
    return [r for r in requests if r.counted]


def _failure(r: RequestRecord) -> list[float]:
    return [float(r.error is not None)]


def _cached(r: RequestRecord) -> list[float]:
    return [r.cached_tokens / r.prompt_tokens] if r.prompt_tokens and r.tells_cached else []


METRICS = (
    *(_latency(name, name.upper(), p) for name in ("ttft", "tpot", "itl", "e2e") for p in ("p50", "p99")),
    _latency("queue", "Queue", "p50"),
    _rate("output_tokens_per_s", "Output tok/s", bootstrap.output),
    _rate("total_tokens_per_s", "Total tok/s", bootstrap.total),
    _rate("requests_per_s", "Requests/s", bootstrap.completion),
    _rate("goodput_per_s", "Goodput, req/s", None),
    Metric("cached_share", "Cached share", False, lambda summary: summary.cached_share, _cached),
    Metric("failed_share", "Failed share", True, _failed_share, _failure, chosen=_counted),
)
"""In the order of the table."""


class Row(msgspec.Struct, kw_only=True, frozen=True):
    """One metric at one load."""

    metric: str
    title: str
    a: float
    b: float
    ratio: float | None
    """``b / a``."""
    low: float | None
    """Ends of the 95 % interval of ``b - a``; None: unknown."""
    high: float | None
    basis: str
    """What the interval rests on: ``pairs``, ``repeats``, ``requests``, ``slices``, ``nothing``."""
    verdict: str
    """``better``, ``worse``, ``noise``, or ``unknown``: what ``b`` is."""


class Pair(msgspec.Struct, kw_only=True, frozen=True):
    """One load that both results have."""

    load: str
    repeats: tuple[int, int]
    rows: list[Row]
    invalid: tuple[bool, bool]
    """Whether a run of it is not valid."""


class Comparison(msgspec.Struct, kw_only=True, frozen=True):
    """All of it, as ``--json`` prints it."""

    names: tuple[str, str]
    warnings: list[str]
    pairs: list[Pair]

    def regressions(self, percent: float) -> list[tuple[str, Row]]:
        """(load, row) of what is worse in ``b`` by more than ``percent``, and by more than the noise."""
        return [(p.load, row) for p in self.pairs for row in p.rows if row.verdict == "worse" and _by(row) > percent]


def _by(row: Row) -> float:
    return inf if row.a == 0 else 100 * abs(row.b - row.a) / abs(row.a)


def compare(a: Result, b: Result, names: tuple[str, str] = ("a", "b")) -> Comparison:
    """Compare ``b`` with ``a``. Raises ``ResultError`` if they have no load in common."""
    loads_a, loads_b = a.loads, b.loads
    common = [load for load in loads_a if load in loads_b]
    if not common:
        told = [", ".join(short(load) for load in list(loads)[:8]) for loads in (loads_a, loads_b)]
        raise ResultError(f"no load in common: {names[0]} has {told[0]}; {names[1]} has {told[1]}. Measure both with the same")
    pairs = [_pair(load, loads_a[load], loads_b[load], b.slo if a.slo == b.slo else None) for load in common]
    return Comparison(names=names, warnings=_warnings(a, b, names, loads_a, loads_b), pairs=pairs)


def _pair(load: str, a: list[Run], b: list[Run], slo: dict[str, float] | None) -> Pair:
    rows = [row for metric in METRICS if (row := _row(metric, a, b, slo)) is not None]
    invalid = (not all(r.summary.valid for r in a), not all(r.summary.valid for r in b))
    return Pair(load=load, repeats=(len(a), len(b)), rows=rows, invalid=invalid)


def _row(metric: Metric, a: list[Run], b: list[Run], slo: dict[str, float] | None) -> Row | None:
    """None where one side has not measured it, or there is nothing to tell."""
    found = [[value for run in runs if (value := metric.of(run.summary)) is not None] for runs in (a, b)]
    if not all(found) or (metric.name == "goodput_per_s" and slo is None):
        return None
    if metric.name in ("failed_share", "cached_share") and not any(map(any, found)):
        return None
    d = _difference(metric, a, b, found, slo or {})
    verdict = "noise" if not d.real else ("better" if (d.change < 0) == metric.lower else "worse")
    if d.basis == "nothing":
        verdict = "unknown"
    low, high = (d.low, d.high) if d.basis != "nothing" else (None, None)
    ratio = d.ratio if finite(d.ratio) else None
    named = {"metric": metric.name, "title": metric.title, "basis": d.basis, "verdict": verdict}
    return Row(**named, a=d.a, b=d.b, ratio=ratio, low=low, high=high)


def _difference(metric: Metric, a: list[Run], b: list[Run], found: Sequence[list[float]], slo: dict[str, float]) -> Difference:
    if min(map(len, found)) > 1:
        return repeated(a, b, found[0], found[1])
    point = (mean(found[0]), mean(found[1]))
    if metric.values is not None:
        groups = [_clusters(runs, metric.values, metric.chosen) for runs in (a, b)]
        return bootstrap.by_requests(groups[0], groups[1], metric.share, point)
    amounts = metric.amounts or (lambda r: bootstrap.completion(r) if met(r, slo) else [])
    slices = [[rate for run in runs for rate in bootstrap.rates(run, amounts)] for runs in (a, b)]
    return bootstrap.by_slices(slices[0], slices[1], point)


def repeated(a: list[Run], b: list[Run], found_a: list[float], found_b: list[float]) -> Difference:
    """Compare repeats: one by one where the nth of both had the same seed, and every repeat another, else as two groups.

    On logarithms where they exist. Decided by seeds and signs alone, never by which looks better.
    """
    seeds = [run.seed for run in a]
    matched = seeds == [run.seed for run in b] and len(set(seeds)) == len(seeds) >= FEWEST_PAIRS
    compared = paired if matched and len(found_a) == len(found_b) else welch
    return multiplied(found_a, found_b, compared) if min(*found_a, *found_b) > 0 else compared(found_a, found_b)


def _clusters(
    runs: list[Run],
    values: Callable[[RequestRecord], list[float]],
    chosen: Callable[[list[RequestRecord]], list[RequestRecord]],
) -> bootstrap.Clusters:
    return {key: found for run in runs for key, found in bootstrap.clusters(run, chosen(run.requests), values).items()}


def _warnings(
    a: Result, b: Result, names: tuple[str, str], loads_a: dict[str, list[Run]], loads_b: dict[str, list[Run]]
) -> list[str]:
    """What a reader must know before believing a difference, the worst first."""
    found = []
    for result, name in ((a, names[0]), (b, names[1])):
        for run in result.runs:
            if not run.summary.valid:
                why = "; ".join(short(p, 120) for p in run.summary.problems[:3]) or "it does not say why"
                found.append(f"{name} at {short(run.load)}, repeat {run.repeat}, is not valid: {why}")
    if a.model != b.model:
        found.append(f"the models differ: {short(a.model)} and {short(b.model)}")
    if parts := _changes(a.workload, b.workload):
        found.append(f"the workloads differ: {parts}")
    if a.slo != b.slo:
        found.append(f"the limits differ, so goodput is not compared: {_changes(a.slo, b.slo)}")
    if parts := _changes(a.definitions, b.definitions):
        found.append(f"metrics are defined differently: {parts}")
    seeds = [load for load in loads_a if load in loads_b and _seeds(loads_a[load]) != _seeds(loads_b[load])]
    if seeds:
        found.append(f"the seeds differ at {', '.join(short(s) for s in seeds[:4])}: other prompts, other arrivals")
    for loads, others, name in ((loads_a, loads_b, names[0]), (loads_b, loads_a, names[1])):
        if only := [short(load) for load in loads if load not in others]:
            found.append(f"only {name} has {plural(len(only), 'load')}: {'; '.join(only[:6])}")
    return found


def _changes(a: dict[str, Any], b: dict[str, Any]) -> str:
    keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
    shown = [f"{short(key, 30)} {_value(a, key)} and {_value(b, key)}" for key in keys[:5]]
    return "; ".join(shown) + (f"; and {len(keys) - 5} more" if len(keys) > 5 else "")


def _value(values: dict[str, Any], key: str) -> str:
    return short(str(values[key]), 40) if key in values else "none"


def _seeds(runs: list[Run]) -> list[int]:
    return sorted(run.seed for run in runs)
