"""What a benchmark measured, as plain data: the contract between the load generator, the summaries and the reports.

A result file is one ``Result`` as JSON. Times of requests are seconds since their run's start; durations are seconds;
fields of summaries say their unit in their name.
"""

from __future__ import annotations

from typing import Any

import msgspec

SCHEMA_VERSION = 1


class RequestRecord(msgspec.Struct, kw_only=True):
    """One request as the client saw it."""

    index: int
    """Position in the workload, the same in every run of the same seed."""
    session: int = -1
    """Conversation that it is a turn of; -1: it stands alone."""
    turn: int = 0
    """Which one, from 0."""
    stage: int = 0
    """Step of the load it was scheduled in (ramps and surges have several)."""
    scheduled: float
    """When the arrival process wanted it sent. In a closed loop: when its client was free."""
    sent: float = 0.0
    """When its bytes went out. ``sent - scheduled`` is the client's lag."""
    first: float | None = None
    """When the first chunk with content came; None if none did."""
    last: float | None = None
    """When the last chunk with content came."""
    ended: float = 0.0
    """When the response was over, or failed."""
    gaps: list[float] = []
    """Seconds between consecutive chunks with content."""
    chunk_tokens: list[int] = []
    """Tokens of each chunk with content where the server tells (log-probabilities); else empty."""
    prompt_tokens: int = 0
    """By the server's usage, like the next two."""
    cached_tokens: int = 0
    """Of those, taken from the server's cache."""
    output_tokens: int = 0
    """Tokens of the answer, whatever the chunks that they came in."""
    queue_seconds: float | None = None
    """Time the server says that it waited, where it says so."""
    tells_cached: bool = False
    """Whether the server's usage has a count of cached tokens."""
    finish_reason: str | None = None
    """As the server gave it; ``stop`` means that the last output token has no text."""
    error: str | None = None
    """What went wrong, in one line; None: a whole answer came."""
    error_kind: str | None = None
    """``connect``, ``status``, ``timeout``, ``dropped``, ``bad_stream``, ``server_error``, ``empty`` or ``cancelled``."""
    counted: bool = True
    """Whether it lies in the measured window: not warm-up, not drain-down."""


class LoadSample(msgspec.Struct, kw_only=True):
    """The client's view of one moment."""

    time: float
    """Seconds since the run's start."""
    in_flight: int
    """Requests sent and not ended."""
    running: float | None = None
    """The server's gauges, where it has ``/metrics``."""
    waiting: float | None = None
    """Requests that the server has accepted and does not run yet."""
    kv_usage: float | None = None
    """Share of its KV cache in use, 0 to 1."""


class Distribution(msgspec.Struct, kw_only=True):
    """A metric over the counted requests (or their chunks), in milliseconds."""

    count: int
    """Values that there were."""
    mean: float
    std: float
    """Standard deviation of the values."""
    min: float
    p50: float
    """Percentiles are linear between the nearest ranks, as numpy's."""
    p90: float
    p95: float
    p99: float
    max: float


class Summary(msgspec.Struct, kw_only=True):
    """One run in numbers. A distribution is None where nothing was measured, never zero."""

    window_seconds: float
    """Measured window: warm-up and drain-down excluded."""
    completed: int
    """Counted requests whose whole answer came."""
    failed: int
    """Counted requests that ended otherwise."""
    errors: dict[str, int]
    """By ``error_kind``."""
    ttft_ms: Distribution | None
    """Time to first token."""
    tpot_ms: Distribution | None
    """Time per output token after the first, of a request."""
    itl_ms: Distribution | None
    """Inter-token latency: gaps between chunks, per token."""
    e2e_ms: Distribution | None
    """From send to the last chunk."""
    queue_ms: Distribution | None
    """Wait in the server, as it says itself."""
    client_lag_ms: Distribution | None
    """How late the client sent: in none of the others."""
    output_tokens_per_s: float
    """Output tokens of the window per second."""
    total_tokens_per_s: float
    """Prompt and output tokens of the window per second."""
    requests_per_s: float
    """Completed requests of the window per second."""
    goodput_per_s: float | None
    """Requests per second that met every limit of the SLO; None without an SLO."""
    goodput_share: float | None
    """Of the counted requests, failed ones included."""
    cached_share: float | None
    """Of prompt tokens; None if the server does not tell."""
    prompt_tokens: int
    """Of all completed requests."""
    output_tokens: int
    """Of all completed requests."""
    valid: bool
    """False if the client was the bottleneck, or nothing was completed."""
    problems: list[str]
    """Why it is not valid, and what else a reader must know."""
    loop_lag_ms: Distribution | None = None
    """How late the client's own event loop was, sampled all along."""
    client_cpu_share: float | None = None
    """Of one core, used by the client's process during the run."""


class Stage(msgspec.Struct, kw_only=True):
    """One step of a load that has several."""

    stage: int
    """Its number, as in the records of its requests."""
    load: str
    """In words, like a run's."""
    value: float
    """Requests per second, or clients."""
    start: float
    """Seconds since the run's start, like the next."""
    end: float
    """Of its arrivals; their answers may come later."""
    summary: Summary
    """Of the requests that were scheduled in it."""


class Run(msgspec.Struct, kw_only=True):
    """One repeat of one load."""

    load: str
    """The load in words, such as ``closed, 32 clients`` or ``poisson, 4 requests/s``."""
    value: float
    """Its one number: clients, or requests per second."""
    repeat: int
    """From 0."""
    seed: int
    """What the workload and the arrivals of this run were drawn with."""
    summary: Summary
    """This run in numbers."""
    requests: list[RequestRecord]
    """All that were sent, warm-up and drain-down too."""
    samples: list[LoadSample] = []
    """In the order of time."""
    stages: list[Stage] = []
    """Empty where the load has only one."""
    window: tuple[float, float] = (0.0, 0.0)
    """Start and end of the measured window, seconds since the run's start."""
    interrupted: bool = False
    """Stopped by the user before its end: the numbers are of what was there."""


class Result(msgspec.Struct, kw_only=True):
    """A result file."""

    schema_version: int = SCHEMA_VERSION
    """Raised when a field changes its meaning; a new optional field does not raise it."""
    tool: str
    """Name and version of what wrote it."""
    started: str
    """ISO 8601, UTC."""
    url: str
    """The server that was loaded."""
    model: str
    """The model's name, as requests carry it."""
    server: dict[str, Any] = {}
    """What the server says of itself: version, and more where it is forno."""
    client: dict[str, Any] = {}
    """Machine, Python, command line."""
    workload: dict[str, Any] = {}
    """Name and every parameter, seed included: enough to run it again."""
    slo: dict[str, float] = {}
    """Limits in milliseconds by metric."""
    definitions: dict[str, str] = {}
    """Metric to its definition, as printed."""
    runs: list[Run]
    """Every load, and every repeat of it."""
    capacity: dict[str, Any] | None = None
    """What ``--find-capacity`` found."""
    interrupted: bool = False
    """Stopped by the user: the last run is a part, and later ones are missing."""

    @property
    def loads(self) -> dict[str, list[Run]]:
        """The repeats of each load, in the order of the file."""
        found: dict[str, list[Run]] = {}
        for run in self.runs:
            found.setdefault(run.load, []).append(run)
        return found
