"""The noise of one run that was not repeated, from the run itself. It knows records, and nothing of their server.

Latencies: requests are drawn again with replacement, a conversation's turns together, for they depend on each other (cluster
bootstrap). Rates: the window is cut into slices of equal length, each a small measurement (batch means). Neither sees what
changes between runs, such as a neighbour's load or another order of arrivals: only repeats do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from forno.bench import measures
from forno.bench.records import RequestRecord
from forno.bench.statistics import LEVEL, Difference, welch

SLICES = 10
"""Of a window: enough for a spread, long enough that one depends little on the next."""
FEWEST, MOST = 200, 2000
"""Draws; fewer where there are many values."""
WORK = 40_000_000
"""Values looked at in all draws of one metric."""
BEYOND = 2
"""Requests that must lie beyond a percentile before one run says anything of its noise."""

Clusters = list[list[float]]


def clusters(requests: Sequence[RequestRecord], measure: Callable[[RequestRecord], list[float]]) -> Clusters:
    """A metric's values, those of a conversation together; those without any are left out."""
    found: dict[tuple[int, int], list[float]] = {}
    for r in requests:
        key = (0, r.session) if r.session >= 0 else (1, id(r))
        found.setdefault(key, []).extend(measure(r))
    return [values for values in found.values() if values]


def enough(groups: Clusters, share: float | None) -> bool:
    """Whether a percentile (None: the mean) of so many clusters can be told from its noise."""
    return len(groups) >= BEYOND and (share is None or len(groups) * min(share, 1 - share) >= BEYOND)


def draws(groups: Clusters, share: float | None, seed: int) -> NDArray[np.float64]:
    """A percentile (None: the mean) of the values in sets of clusters drawn with replacement."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([np.asarray(g, np.float64) for g in groups])
    owner = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    order = np.argsort(values, kind="stable")
    values, owner = values[order], owner[order]
    count = int(np.clip(WORK // len(values), FEWEST, MOST))
    chances = np.full(len(groups), 1 / len(groups))
    found = np.empty(count)
    for i in range(count):
        weights = rng.multinomial(len(groups), chances)[owner]
        found[i] = np.average(values, weights=weights) if share is None else _weighted(values, weights, share)
    return found


def _weighted(ordered: NDArray[np.float64], weights: NDArray[np.int64], share: float) -> float:
    """``statistics.percentile`` of values of which each stands there ``weights`` times."""
    ranks = np.cumsum(weights)
    place = share * (ranks[-1] - 1)
    low, high = ordered[np.searchsorted(ranks, [np.floor(place), np.ceil(place)], side="right")]
    return float(low + (high - low) * (place - np.floor(place)))


def by_requests(a: Clusters, b: Clusters, share: float | None, point: tuple[float, float], seed: int = 1) -> Difference:
    """Compare a metric of two runs, ``point`` as their summaries have it; of unknown noise where there are too few requests."""
    if not (enough(a, share) and enough(b, share)):
        return Difference(a=point[0], b=point[1], low=-inf, high=inf, basis="nothing")
    drawn_a, drawn_b = draws(a, share, seed), draws(b, share, seed + 1)
    size = min(len(drawn_a), len(drawn_b))
    low, high = np.quantile(drawn_b[:size] - drawn_a[:size], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(a=point[0], b=point[1], low=float(low), high=float(high), basis="requests")


def rates(requests: Sequence[RequestRecord], amounts: Callable[[RequestRecord], list[tuple[float, float]]]) -> list[float]:
    """An amount per second in each slice of the window, from each request's (time, amount); empty without a window.

    Requests that are not counted add what they did within it, as they took their part of the server.
    """
    counted = measures.succeeded(requests)
    if not counted:
        return []
    start, end = min(r.sent for r in counted), max(r.last or r.sent for r in counted)
    if end <= start:
        return []
    events = [event for r in requests if r.error is None for event in amounts(r)]
    times, weights = np.array([t for t, _ in events]), np.array([w for _, w in events])
    sums, _ = np.histogram(times, SLICES, (start, end), weights=weights)
    return [float(s) * SLICES / (end - start) for s in sums]


def by_slices(a: list[float], b: list[float], point: tuple[float, float]) -> Difference:
    """Compare a rate of two runs: the spread is the slices', the rates themselves are the summaries' (``point``)."""
    if not (sum(a) and sum(b)):
        return Difference(a=point[0], b=point[1], low=-inf, high=inf, basis="nothing")
    scaled = [[v * rate * len(slices) / sum(slices) for v in slices] for slices, rate in ((a, point[0]), (b, point[1]))]
    found = welch(*scaled)
    return Difference(a=point[0], b=point[1], low=found.low, high=found.high, basis="slices")


def output(r: RequestRecord) -> list[tuple[float, float]]:
    """When a request's output tokens came, and how many."""
    if r.first is None:
        return []
    times = np.cumsum([r.first, *r.gaps]).tolist()
    tokens = r.chunk_tokens if len(r.chunk_tokens) == len(times) else [r.output_tokens / len(times)] * len(times)
    return list(zip(times, tokens, strict=True))


def total(r: RequestRecord) -> list[tuple[float, float]]:
    """The same with its prompt's, which count when the first token comes."""
    return [*output(r), *([] if r.first is None else [(r.first, float(r.prompt_tokens))])]


def completion(r: RequestRecord) -> list[tuple[float, float]]:
    """When a request was complete."""
    return [] if r.last is None else [(r.last, 1.0)]
