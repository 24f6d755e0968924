"""Records to a run's summary, by the definitions in ``measures.py``. It knows records, no server and no load.

Latencies are of the requests that were *sent* in the measured window, however long they took: leaving out those that end
later would leave out the slow ones. Rates rest on the tokens that were *received* in it, whoever asked: whole requests at its
edges would count too much, by as many as run at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from forno.bench import measures
from forno.bench.numbers import plural
from forno.bench.records import Distribution, RequestRecord, Summary
from forno.bench.statistics import percentiles

MAX_LAG_MS = 25.0
"""99th percentile of the client's lag beyond which it measures itself rather than the server."""
MAX_CPU_SHARE = 0.9
ROUNDING = 1e-4
"""Seconds: times are kept in microseconds, and an answer may have a hundred gaps to add up."""


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """What the client knows of itself during a run."""

    loop_lags: Sequence[float] = ()
    """Seconds by which its event loop was late, sampled."""
    cpu_share: float | None = None
    """Of one core."""
    max_lag_ms: float = MAX_LAG_MS


def distribution(milliseconds: Sequence[float]) -> Distribution | None:
    """None without values."""
    values = np.array(milliseconds, dtype=np.float64)
    if not values.size:
        return None
    p50, p90, p95, p99 = percentiles(milliseconds, (0.5, 0.9, 0.95, 0.99))
    low, high = float(values.min()), float(values.max())
    mean = min(max(float(values.mean()), low), high)  # a sum of equal numbers may round to beside them
    return Distribution(
        count=values.size, mean=mean, std=float(values.std()), min=low, p50=p50, p90=p90, p95=p95, p99=p99, max=high
    )


def met(record: RequestRecord, slo: Mapping[str, float]) -> bool:
    """Whether the request was answered, within every limit."""
    return record.error is None and measures.meets(record, dict(slo))


def tokens_within(record: RequestRecord, start: float, end: float) -> float:
    """Output tokens of a request that were received from ``start`` to ``end``."""
    if record.first is None:
        return 0.0
    times = record.first + np.concatenate(([0.0], np.cumsum(record.gaps)))
    inside = (times >= start - ROUNDING) & (times <= end + ROUNDING)
    weights = np.array(record.chunk_tokens, np.float64) if len(record.chunk_tokens) == len(times) else np.ones(len(times))
    return record.output_tokens * float(inside @ weights / weights.sum())


def _has_failed(record: RequestRecord) -> bool:
    """Whether its tokens are of no answer. One that was cancelled at the end of the run would have been answered."""
    return record.error is not None and record.error_kind != "cancelled"


def summarize(
    records: Sequence[RequestRecord],
    window: tuple[float, float],
    slo: Mapping[str, float],
    health: ClientHealth = ClientHealth(),
    problems: Sequence[str] = (),
) -> Summary:
    """One run, or one stage of it, in numbers. ``records`` are all of it, counted or not."""
    start, end = window
    seconds = max(0.0, end - start)
    counted = [r for r in records if r.counted]
    good = [r for r in counted if r.error is None]
    good_outputs, good_inputs = sum(r.output_tokens for r in good), sum(r.prompt_tokens for r in good)
    rate = sum(tokens_within(r, start, end) for r in records) / seconds if seconds > 0 else 0.0
    lost = sum(tokens_within(r, start, end) for r in records if _has_failed(r)) / seconds if seconds > 0 else 0.0
    requests_rate = (rate - lost) * len(good) / good_outputs if good_outputs else 0.0
    within_slo = sum(met(r, slo) for r in counted) if slo else 0
    latencies = {f"{name}_ms": distribution(measures.values(good, name)) for name in ("ttft", "tpot", "itl", "e2e", "queue")}
    lags = distribution(measures.values(counted, "client_lag"))
    loop = distribution([1e3 * lag for lag in health.loop_lags])
    faults = _faults(good, seconds, lags, loop, health)
    return Summary(
        window_seconds=seconds,
        completed=len(good),
        failed=len(counted) - len(good),
        errors=_errors(counted),
        **latencies,
        client_lag_ms=lags,
        output_tokens_per_s=rate,
        total_tokens_per_s=rate * (1 + good_inputs / good_outputs) if good_outputs else 0.0,
        requests_per_s=requests_rate,
        goodput_per_s=(requests_rate * within_slo / len(good) if good else 0.0) if slo else None,
        goodput_share=within_slo / len(counted) if slo and counted else None,
        cached_share=_cached_share(good),
        prompt_tokens=good_inputs,
        output_tokens=good_outputs,
        valid=not faults,
        problems=[*faults, *problems, *_notes(records)],
        loop_lag_ms=loop,
        client_cpu_share=health.cpu_share,
    )


def _cached_share(answered: Sequence[RequestRecord]) -> float | None:
    told = [r for r in answered if r.tells_cached]
    prompts = sum(r.prompt_tokens for r in told)
    return sum(r.cached_tokens for r in told) / prompts if prompts else None


def _errors(records: Iterable[RequestRecord]) -> dict[str, int]:
    kinds = [r.error_kind or "unknown" for r in records if r.error is not None]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def _faults(
    good: Sequence[RequestRecord], seconds: float, lags: Distribution | None, loop: Distribution | None, health: ClientHealth
) -> list[str]:
    """Why the numbers must not be used."""
    found = []
    if not good:
        found.append("no counted request was answered")
    elif seconds <= 0:
        found.append("the measured window is empty")
    for what, late in (("requests were sent", lags), ("the client's event loop was", loop)):
        if late is not None and late.p99 > health.max_lag_ms:
            found.append(
                f"the client was the bottleneck: {what} up to {late.p99:.1f} ms late (99th percentile; "
                f"the limit is {health.max_lag_ms:g} ms); give it a core of its own, or lower the load"
            )
    if (health.cpu_share or 0.0) > MAX_CPU_SHARE:
        found.append(
            f"the client was the bottleneck: it used {100 * (health.cpu_share or 0):.0f} % of a core; "
            "run several, or lower the load"
        )
    return found


def _notes(records: Sequence[RequestRecord]) -> list[str]:
    """What else a reader must know."""
    notes = []
    errors = [r for r in records if _has_failed(r)]
    outside = [r for r in errors if not r.counted]
    for kind, count in _errors(errors).items():
        example = next(r.error for r in errors if (r.error_kind or "unknown") == kind)
        notes.append(f"{plural(count, 'request')} failed ({kind}), such as: {example}")
    if outside:
        notes.append(f"failed outside the measured window: {len(outside)} of them")
    return notes
