"""Records to numbers, by definitions that are printed beside them. It knows records, no server and no load.

Latencies are of the requests that were *sent* in the measured window, however long they took: leaving out those that end
later would leave out the slow ones. Rates are of what was *received* in it, whoever asked: counting whole requests at its
edges would give a rate that depends on how long requests are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from forno.bench.records import Distribution, RequestRecord, Summary
from forno.bench.slo import e2e, met, tpot, ttft

DEFINITIONS = {
    "TTFT": "time to first token: from sending a request to its first chunk with content; making a connection counts if one is made",
    "TPOT": "time per output token: (E2E - TTFT) / (output tokens - 1), tokens by the server's count; one value per request",
    "ITL": "inter-token latency: gap between two chunks with content / tokens in the later one; one value per gap. Where the server "
    "does not tell a chunk's tokens, all of an answer's have the same share",
    "E2E": "end-to-end latency: from sending a request to its last chunk with content",
    "queue": "waiting time inside the server, as the server tells it",
    "client lag": "actual sending - scheduled sending; in a closed loop scheduled is when the client was free",
    "window": "from sending the first counted request to the end of the last one, warm-up before and drain-down after excluded; "
    "the load is kept up until then by requests that are not counted, or else it ends where the load fell",
    "output tok/s": "output tokens received in the window / its length; whose request they belong to does not matter",
    "total tok/s": "the same, plus the prompt tokens of requests whose first chunk came in the window",
    "requests/s": "requests answered in the window / its length",
    "goodput": "requests answered in the window within every limit of the SLO / its length; the share is of counted requests, "
    "failed ones included",
    "cached": "share of the counted requests' prompt tokens that the server took from its prefix cache",
    "percentiles": "linear between ranks; over counted requests without error (ITL: over their gaps)",
}
MAX_LAG_MS = 20.0
"""99th percentile of the client's lag beyond which it measures itself rather than the server."""
MAX_CPU_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """What the client knows of itself during a run."""

    loop_lags: Sequence[float] = ()
    """Seconds by which its event loop was late, sampled."""
    cpu_share: float | None = None
    """Of one core."""
    max_lag_ms: float = MAX_LAG_MS


def distribution(seconds: Iterable[float | None]) -> Distribution | None:
    """In milliseconds, over the values there are; None without any."""
    values = 1000 * np.array([s for s in seconds if s is not None], dtype=np.float64)
    if not values.size:
        return None
    p50, p90, p95, p99 = (float(p) for p in np.percentile(values, (50, 90, 95, 99)))
    low, high = float(values.min()), float(values.max())
    mean = min(max(float(values.mean()), low), high)  # a sum of equal numbers may round to beside them
    return Distribution(
        count=values.size, mean=mean, std=float(values.std()), min=low, p50=p50, p90=p90, p95=p95, p99=p99, max=high
    )


def inter_token(record: RequestRecord) -> list[float]:
    """Seconds per token of each chunk after the first."""
    if record.chunk_tokens:
        return [gap / tokens for gap, tokens in zip(record.gaps, record.chunk_tokens[1:], strict=False)]
    with_text = record.output_tokens - (record.finish_reason == "stop")  # the token that ended it has none
    share = max(1.0, with_text / (len(record.gaps) + 1))
    return [gap / share for gap in record.gaps]


def tokens_within(record: RequestRecord, start: float, end: float) -> tuple[float, int]:
    """Output and prompt tokens of a request that count as received from ``start`` to ``end``."""
    if record.first is None:
        return 0.0, 0
    times = record.first + np.concatenate(([0.0], np.cumsum(record.gaps)))
    inside = (times >= start) & (times <= end)
    whole = [float(t) for t in record.chunk_tokens] if record.chunk_tokens else [1.0] * len(times)
    share = float(np.dot(inside, whole)) / sum(whole)
    return record.output_tokens * share, record.prompt_tokens if inside[0] else 0


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
    received = [tokens_within(r, start, end) for r in records]
    ended = [r for r in records if r.error is None and start <= r.ended <= end]
    told = [r for r in good if r.tells_cached]
    prompts = sum(r.prompt_tokens for r in told)
    outputs, inputs = sum(o for o, _ in received), sum(p for _, p in received)
    lags = distribution(r.sent - r.scheduled for r in counted)
    loop = distribution(health.loop_lags)
    faults = _faults(good, seconds, lags, loop, health)
    return Summary(
        window_seconds=seconds,
        completed=len(good),
        failed=len(counted) - len(good),
        errors=_errors(counted),
        ttft_ms=distribution(map(ttft, good)),
        tpot_ms=distribution(map(tpot, good)),
        itl_ms=distribution(gap for r in good for gap in inter_token(r)),
        e2e_ms=distribution(map(e2e, good)),
        queue_ms=distribution(r.queue_seconds for r in good),
        client_lag_ms=lags,
        output_tokens_per_s=_rate(outputs, seconds),
        total_tokens_per_s=_rate(outputs + inputs, seconds),
        requests_per_s=_rate(len(ended), seconds),
        goodput_per_s=_rate(sum(met(r, slo) for r in ended), seconds) if slo else None,
        goodput_share=sum(met(r, slo) for r in counted) / len(counted) if slo and counted else None,
        cached_share=sum(r.cached_tokens for r in told) / prompts if prompts else None,
        prompt_tokens=sum(r.prompt_tokens for r in good),
        output_tokens=sum(r.output_tokens for r in good),
        valid=not faults,
        problems=[*faults, *problems, *_notes(records)],
        loop_lag_ms=loop,
        client_cpu_share=health.cpu_share,
    )


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


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
            f"the client was the bottleneck: it used {100 * (health.cpu_share or 0):.0f} % of a core; run several, or lower the load"
        )
    return found


def _notes(records: Sequence[RequestRecord]) -> list[str]:
    """What else a reader must know."""
    notes = []
    errors = [r for r in records if r.error is not None and r.error_kind != "cancelled"]
    outside = [r for r in errors if not r.counted]
    for kind, count in _errors(errors).items():
        example = next(r.error for r in errors if (r.error_kind or "unknown") == kind)
        notes.append(f"{count} request{'s' if count > 1 else ''} failed ({kind}), such as: {example}")
    if outside:
        notes.append(f"of the failed requests, {len(outside)} were outside the measured window")
    return notes
