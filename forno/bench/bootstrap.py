"""The noise of one run that was not repeated, from the run itself. It knows records, and nothing of their server.

Latencies: requests are drawn again with replacement, a conversation's turns together, for they depend on each other (cluster
bootstrap). Rates: the window is cut into slices of equal length, each a small measurement (batch means). Neither sees what
changes between runs, such as a neighbour's load or another order of arrivals: only repeats do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from forno.bench.records import RequestRecord, Run
from forno.bench.statistics import LEVEL, Difference, welch

SLICES = 10
"""Of a window: enough for a spread, long enough that one depends little on the next."""
FEWEST, MOST = 200, 2000
"""Draws; fewer where there are many values."""
WORK = 20_000_000
"""Values looked at in all draws of one metric."""
BEYOND = 2
"""Requests that must lie beyond a percentile before one run says anything of its noise."""

Clusters = dict[tuple[int, ...], list[float]]
"""What is drawn together -> its values. Two runs of one seed asked the same of the server under the same key."""


def clusters(run: Run, requests: Sequence[RequestRecord], values: Callable[[RequestRecord], list[float]]) -> Clusters:
    """A metric's values, those of a conversation together; who has none is left out."""
    found: Clusters = {}
    for r in requests:
        key = (run.seed, run.repeat, 0, r.session) if r.session >= 0 else (run.seed, run.repeat, 1, r.index)
        if some := values(r):
            found.setdefault(key, []).extend(some)
    return found


def enough(groups: Clusters, share: float | None) -> bool:
    """Whether a percentile (None: the mean) of so many clusters can be told from its noise."""
    return len(groups) >= BEYOND and (share is None or len(groups) * min(share, 1 - share) >= BEYOND)


def by_requests(a: Clusters, b: Clusters, share: float | None, point: tuple[float, float]) -> Difference:
    """Compare a percentile (None: the mean) of two runs, ``point`` as their summaries have it.

    What both runs asked is drawn for both or for neither, so what is particular to a prompt cancels.
    """
    if not (enough(a, share) and enough(b, share)):
        return Difference(a=point[0], b=point[1], low=-inf, high=inf, basis="nothing")
    keys = {key: i for i, key in enumerate(sorted({**a, **b}))}
    rng, chances = np.random.default_rng(0), np.full(len(keys), 1 / len(keys))
    sides = [_Side(groups, keys) for groups in (a, b)]
    count = int(np.clip(WORK // sum(len(side.values) for side in sides), FEWEST, MOST))
    changes = np.empty(count)
    for i in range(count):
        weights = rng.multinomial(len(keys), chances)
        changes[i] = sides[1].draw(weights, share) - sides[0].draw(weights, share)
    low, high = np.nanquantile(changes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(a=point[0], b=point[1], low=float(low), high=float(high), basis="requests")


class _Side:
    """One run's values in ascending order, and the cluster of each."""

    def __init__(self, groups: Clusters, keys: dict[tuple[int, ...], int]) -> None:
        values = np.concatenate([np.asarray(g, np.float64) for g in groups.values()])
        owner = np.repeat([keys[key] for key in groups], [len(g) for g in groups.values()])
        order = np.argsort(values, kind="stable")
        self.values, self.owner = values[order], owner[order]

    def draw(self, weights: NDArray[np.int64], share: float | None) -> float:
        """``statistics.percentile`` of values each of which stands there as often as its cluster was drawn."""
        times = weights[self.owner]
        ranks = np.cumsum(times)
        if not ranks[-1]:
            return nan
        if share is None:
            return float(np.dot(self.values, times) / ranks[-1])
        place = share * (ranks[-1] - 1)
        low, high = self.values[np.searchsorted(ranks, [np.floor(place), np.ceil(place)], side="right")]
        return float(low + (high - low) * (place - np.floor(place)))


def rates(run: Run, amounts: Callable[[RequestRecord], list[tuple[float, float]]]) -> list[float]:
    """An amount per second in each slice of the window, from each request's (time, amount); empty without a window.

    Requests that are not counted add what came in the window, as in the summaries.
    """
    start, end = run.window
    events = [event for r in run.requests for event in amounts(r)]
    if end <= start or not events:
        return []
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
    return list(zip(times, map(float, tokens), strict=True))


def total(r: RequestRecord) -> list[tuple[float, float]]:
    """The same with its prompt's, which count when the first token comes."""
    return [*output(r), *([] if r.first is None else [(r.first, float(r.prompt_tokens))])]


def completion(r: RequestRecord) -> list[tuple[float, float]]:
    """When a request was answered, if it was."""
    return [] if r.error is not None else [(r.ended, 1.0)]
