"""What is measured of a request, in milliseconds, from the times its client noted. Nothing here sums up a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from forno.bench.records import RequestRecord

DEFINITIONS = {
    "ttft": "time to first token: from sending a request to its first chunk with content; connecting counts where it is needed",
    "tpot": "time per output token: (last chunk - first chunk) / (output tokens - 1), tokens as the server counts them; one "
    "value per request",
    "itl": "inter-token latency: gap between two chunks with content / tokens of the later one; one value per gap. Where the "
    "server does not tell a chunk's tokens, the answer's are shared equally",
    "e2e": "end-to-end latency: from sending a request to its last chunk with content",
    "queue": "time that the server says the request waited before it was first scheduled",
    "client_lag": "actual sending - scheduled sending, the client's own delay, in no other number; in a closed loop one is "
    "scheduled when its client is free",
    "output_tokens_per_s": "output tokens that came within the window / its length, whichever request they belong to",
    "total_tokens_per_s": "output tok/s x (1 + prompt tokens / output tokens of the counted requests)",
    "requests_per_s": "output tok/s of requests that did not fail / mean output tokens of the counted ones: requests across "
    "the window's edges would count too much",
    "goodput_per_s": "requests/s x share of the answered requests that met every limit of the SLO",
    "goodput_share": "counted requests that met every limit of the SLO / counted requests, failed ones included",
    "cached_share": "prompt tokens that the server took from its cache / prompt tokens, of counted requests",
    "window": "from sending the first counted request to the end of the last one; warm-up comes before, and until the end "
    "the load is kept up by requests that do not count. Where nothing is left to send, it ends then",
}
"""Metric -> definition, as printed beside its numbers."""
SLO_METRICS = ("ttft", "tpot", "itl", "e2e")
"""Those that a limit can be set for. A request meets ``itl`` if its largest does."""


def succeeded(requests: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Those of the measured window that were answered whole."""
    return [r for r in requests if r.counted and r.error is None and r.error_kind is None]


def failed(requests: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Those of the measured window that were not."""
    return [r for r in requests if r.counted and (r.error is not None or r.error_kind is not None)]


def ttft(r: RequestRecord) -> list[float]:
    return [] if r.first is None else [1e3 * (r.first - r.sent)]


def tpot(r: RequestRecord) -> list[float]:
    if r.first is None or r.last is None or r.output_tokens < 2:
        return []
    return [1e3 * (r.last - r.first) / (r.output_tokens - 1)]


def itl(r: RequestRecord) -> list[float]:
    if len(r.chunk_tokens) == len(r.gaps) + 1:
        return [1e3 * gap / max(n, 1) for gap, n in zip(r.gaps, r.chunk_tokens[1:], strict=True)]
    with_text = r.output_tokens - (r.finish_reason == "stop")  # the token that ended it has none
    share = max(1.0, with_text / (len(r.gaps) + 1))
    return [1e3 * gap / share for gap in r.gaps]


def e2e(r: RequestRecord) -> list[float]:
    return [] if r.last is None else [1e3 * (r.last - r.sent)]


def queue(r: RequestRecord) -> list[float]:
    return [] if r.queue_seconds is None else [1e3 * r.queue_seconds]


def client_lag(r: RequestRecord) -> list[float]:
    return [1e3 * (r.sent - r.scheduled)]


OF_REQUEST: dict[str, Callable[[RequestRecord], list[float]]] = {
    "ttft": ttft,
    "tpot": tpot,
    "itl": itl,
    "e2e": e2e,
    "queue": queue,
    "client_lag": client_lag,
}
"""Metric -> its values of one request, in milliseconds: none, one, or (``itl``) one per chunk after the first."""


def values(requests: Sequence[RequestRecord], metric: str) -> list[float]:
    """All of a metric's values, in milliseconds."""
    measure = OF_REQUEST[metric]
    return [value for r in requests for value in measure(r)]


def meets(r: RequestRecord, slo: dict[str, float]) -> bool:
    """Whether an answered request kept every limit (milliseconds by metric). What was not measured is not kept,
    except TPOT and ITL of an answer of one token, which has none."""
    for metric, limit in slo.items():
        found = OF_REQUEST[metric](r)
        if not found and not (metric in ("tpot", "itl") and r.output_tokens == 1):
            return False
        if found and max(found) > limit:
            return False
    return True
