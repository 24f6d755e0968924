"""JSON of ``/explain``, ``/explain/{request_id}`` and ``/debug/state``: times in seconds, null where nothing is known."""

from __future__ import annotations

import msgspec

from forno.observe.explanation import Chunk


class PartOut(msgspec.Struct):
    """All time of one kind."""

    kind: str
    seconds: float
    share: float
    """Of the request's time."""
    means: str
    """The kind in a sentence."""
    by: dict[str, float] = {}
    """Requests with the largest shares in it, and their seconds."""


class PhaseOut(msgspec.Struct):
    """A stretch of the request's time; seconds since its begin."""

    phase: str
    start: float
    end: float


class SegmentOut(msgspec.Struct):
    """The smallest pieces, without gaps; seconds since the request's begin."""

    kind: str
    start: float
    end: float
    step: int


class LookupOut(msgspec.Struct):
    """What the prefix cache held."""

    matched: int
    reason: str
    position: int
    """First token that differs from all that was known."""
    means: str


class AdviceOut(msgspec.Struct):
    """One change that would have helped."""

    change: str
    saves: float
    share: float
    flag: str
    at_most: bool


class Explained(msgspec.Struct):
    """One request. ``parts`` sum to ``seconds``, and so do ``phases``."""

    id: str
    state: str
    """``waiting``, ``running``, ``finished`` or ``refused``."""
    reason: str
    error: str
    start: float
    """When its first byte came, on the engine's clock (the system's monotonic one)."""
    seconds: float
    """From its first byte to the last of its answer; of one that still runs: until now."""
    age: float
    """Since its first byte."""
    ttft: float | None
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    max_tokens: int
    preemptions: int
    ahead: int
    """Requests that waited when it came."""
    running: int
    """Requests that ran when it came."""
    parts: list[PartOut]
    phases: list[PhaseOut]
    waited_for: dict[str, float]
    chunks: list[Chunk]
    decode_steps: int
    decode_rows: float
    decode_alone: float
    lookup: LookupOut | None
    advice: list[AdviceOut]
    segments: list[SegmentOut] | None = None
    """With ``?segments=1``."""


class Explanations(msgspec.Struct):
    """A response, and the request that it came of; several, if it has several answers or prompts."""

    id: str
    model: str
    requests: list[Explained]
    answers: int
    """How many it has: of many, the first are explained. Each can be asked for by its own id."""


class RecentRequest(msgspec.Struct):
    """One line of the list."""

    id: str
    state: str
    reason: str
    age: float
    seconds: float
    prompt_tokens: int
    generated_tokens: int
    slowest: str
    """Kind of its largest part."""
    slowest_seconds: float


class Recent(msgspec.Struct):
    """The latest first."""

    model: str
    requests: list[RecentRequest]


class StepOut(msgspec.Struct):
    """One step of the engine."""

    number: int
    start: float
    """On the engine's clock."""
    seconds: float
    """The runner's."""
    wall: float
    """Planning and outputs included."""
    rows: int
    tokens: int
    prompt_tokens: int
    label: str | None = None
    """What it waited for."""
    share: float | None = None
    """Of the roofline."""
    predicted: float | None = None
    intensity: float | None = None
    """FLOP per byte of memory traffic."""
    flops: float | None = None
    bytes: float | None = None


class LiveRequest(msgspec.Struct):
    """A request in the engine."""

    id: str
    state: str
    prompt: int
    cached: int
    generated: int
    max_tokens: int
    age: float
    waits_for: str | None


class Rates(msgspec.Struct):
    """Of the last seconds."""

    output_tokens_per_s: float
    prompt_tokens_per_s: float
    requests_per_s: float


class DebugState(msgspec.Struct):
    """One moment of the server."""

    model: str
    version: str
    uptime: float
    running: int
    waiting: int
    kv_usage: float
    kv_waste: float | None
    """Share of the running requests' KV slots that hold no token."""
    prefix_hit_share: float | None
    ceilings: dict[str, float | None]
    seconds_by_label: dict[str, float | None]
    steps: list[StepOut]
    requests: list[LiveRequest]
    rates: Rates
