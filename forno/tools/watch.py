"""What ``forno top`` knows of a server: its state and its histograms, asked again and again. It knows no terminal."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forno.bench.ask import get
from forno.bench.exposition import samples
from forno.errors import UnreachableError
from forno.tools.plain import plain

STATE, METRICS = "/debug/state", "/metrics"
WINDOW = 10.0
"""Seconds that "now" covers: shares by label and percentiles are of what happened in them."""
TIMEOUT = 5.0
LATENCIES = {"ttft": "time_to_first_token_seconds", "itl": "inter_token_latency_seconds", "e2e": "e2e_request_latency_seconds"}
QUANTILES = (0.5, 0.95, 0.99)
LABELS = ("weights", "kv", "compute", "overhead", "starved", "idle")
"""What a step can wait for, and no step: the parts of ``seconds_by_label``, in the order in which they are drawn."""


class Step(msgspec.Struct):
    """One step as ``/debug/state`` tells of it; None: unknown."""

    number: int = 0
    seconds: float | None = None
    wall: float | None = None
    rows: int | None = None
    tokens: int | None = None
    prompt_tokens: int | None = None
    label: str | None = None
    share: float | None = None
    predicted: float | None = None


class Asked(msgspec.Struct):
    """One live request."""

    id: str = ""
    state: str | None = None
    prompt: int | None = None
    cached: int | None = None
    generated: int | None = None
    max_tokens: int | None = None
    age: float | None = None
    waits_for: str | None = None


class State(msgspec.Struct):
    """``/debug/state``. Fields that are not listed are ignored: a newer server may tell more."""

    model: str | None = None
    version: str | None = None
    uptime: float | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    kv_waste: float | None = None
    prefix_hit_share: float | None = None
    ceilings: dict[str, float | None] | None = None
    seconds_by_label: dict[str, float | None] | None = None
    steps: list[Step] = []
    requests: list[Asked] = []
    rates: dict[str, float | None] | None = None


Buckets = Mapping[float, float]
"""Upper bound to the cumulative count, as Prometheus has them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the server said at one time."""

    time: float
    state: State
    raw: Mapping[str, Any]
    """The state as it came."""
    histograms: Mapping[str, Buckets]
    """By the keys of ``LATENCIES``; empty where the server has none."""


def quantile(buckets: Buckets, q: float) -> float | None:
    """The value below which a share ``q`` of the observations lies, as Prometheus' ``histogram_quantile`` estimates it: evenly
    spread within a bucket, the last finite bound beyond. None without an observation."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    rank, low, below = q * total, 0.0, 0.0
    for bound in bounds:
        count = buckets[bound] - below
        if buckets[bound] >= rank and count > 0:
            return low if math.isinf(bound) else low + (bound - low) * (rank - below) / count
        low, below = (low if math.isinf(bound) else bound), buckets[bound]
    return low


def read_histograms(page: str) -> Mapping[str, Buckets]:
    """The histograms of ``LATENCIES`` on a page of metrics, whatever their prefix; several engines are summed up."""
    found: dict[str, dict[float, float]] = {}
    names = {f"{name}_bucket": key for key, name in LATENCIES.items()}
    for sample in samples(page, names):
        with suppress(ValueError, KeyError):  # what is no bound is nobody's bucket
            bound = float(sample.labels["le"])
            buckets = found.setdefault(names[sample.metric], {})
            buckets[bound] = buckets.get(bound, 0.0) + sample.value
    return found


@dataclass
class Watch:
    """Asks one server, and keeps what it said within ``WINDOW``."""

    url: str
    key: str = ""
    """API key, if the server wants one."""
    samples: deque[Sample] = field(default_factory=deque)

    def ask(self, now: float) -> Sample:
        """One more sample, taken at ``now``. Raises ``UnreachableError``; what was known stays."""
        raw = _parsed(get(self.url + STATE, self.key, TIMEOUT))
        try:
            state = msgspec.convert(plain(raw), State)
        except msgspec.ValidationError as error:
            raise UnreachableError(f"{self.url}{STATE} is not what forno's servers say: {error}") from error
        page = get(self.url + METRICS, self.key, TIMEOUT)
        sample = Sample(now, state, raw, read_histograms(page.decode("utf-8", "replace")))
        if self.samples and _restarted(self.samples[-1].state, state):
            self.samples.clear()
        self.samples.append(sample)
        while len(self.samples) > 2 and self.samples[1].time <= now - WINDOW:
            self.samples.popleft()
        return sample

    # -- what it amounts to ---------------------------------------------------------------------------------------

    def shares(self) -> dict[str, float]:
        """Share of the time by label, since the oldest sample; since the server's start if there is only one."""
        last = _seconds(self.samples[-1]) if self.samples else {}
        first = _seconds(self.samples[0]) if len(self.samples) > 1 else {}
        spent = {label: max(seconds - first.get(label, 0.0), 0.0) for label, seconds in last.items()}
        total = sum(spent.values())
        return {label: seconds / total for label, seconds in spent.items()} if total else {}

    def percentiles(self) -> dict[str, dict[str, float | None]]:
        """Of each latency its quantiles in seconds: of the last ``WINDOW``; since the start where nothing happened in it."""
        if not self.samples:
            return {}
        first, last = self.samples[0].histograms, self.samples[-1].histograms
        found = {}
        for key, buckets in last.items():
            recent = {bound: count - first.get(key, {}).get(bound, 0.0) for bound, count in buckets.items()}
            used = recent if len(self.samples) > 1 and max(recent.values()) > 0 else buckets
            found[key] = {f"p{q * 100:g}": quantile(used, q) for q in QUANTILES}
        return found

    @property
    def seconds(self) -> float | None:
        """How long "now" is; None: since the server's start."""
        return self.samples[-1].time - self.samples[0].time if len(self.samples) > 1 else None


def _seconds(sample: Sample) -> dict[str, float]:
    return {label: seconds for label, seconds in (sample.state.seconds_by_label or {}).items() if seconds is not None}


def _restarted(before: State, after: State) -> bool:
    return before.uptime is not None and after.uptime is not None and after.uptime < before.uptime


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreachableError(f"{STATE} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnreachableError(f"{STATE} is no JSON object")
    return value


def finite(values: Iterable[float | None]) -> list[float]:
    """Those that are known."""
    return [value for value in values if value is not None and math.isfinite(value)]
