"""What is remembered of steps and requests: plain data. Times are seconds on the engine's clock; 0 is "not yet".

The engine's thread writes; any thread may read what it is given, for a record only ever gains values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from forno.cache.misses import Lookup


class Shortage(StrEnum):
    """What the first waiting request waits for."""

    SEATS = "seats"
    """``--max-num-seqs`` requests run already."""
    TOKENS = "tokens"
    """The step's token budget was spent on requests that run."""
    BLOCKS = "blocks"
    """Its tokens do not fit into the free KV blocks."""
    PREFIX = "prefix"
    """Another request computes a block of its prompt now."""
    BATCH = "batch"
    """Static or dynamic batching: the batch has not ended, or not filled."""


@dataclass(slots=True)
class RequestRecord:
    """One request's way through the server."""

    id: str
    serial: int
    """In the order of arrival at the engine."""
    num_prompt: int
    max_tokens: int
    constrained: bool = False
    slo_class: str = ""
    response: str = ""
    """Id of the response that it is part of, where that has another: an answer of several, or to one prompt of several."""
    begun: float = 0.0
    """The first byte of its HTTP request came, as far as the system tells; else: was read."""
    received: float = 0.0
    """Its HTTP request's body was read."""
    tokenized: float = 0.0
    """Its prompt was rendered and turned into tokens."""
    arrival: float = 0.0
    scheduled: float = 0.0
    """First step that it had a row in."""
    first_token: float = 0.0
    finished: float = 0.0
    """The engine was done with it."""
    first_sent: float = 0.0
    """The first byte of its answer was handed to the socket."""
    sent: float = 0.0
    """The last one was."""
    num_cached: int = 0
    num_generated: int = 0
    num_preemptions: int = 0
    reason: str = ""
    """Its finish reason, once it has one; ``refused`` if the engine never took it."""
    error: str = ""
    """Class of the error that ended it."""
    lookup: Lookup | None = None
    ahead: int = 0
    """Requests that waited before it when it arrived."""
    running: int = 0
    """Requests that ran when it arrived."""
    send_seconds: float = 0.0
    """Time that its outputs waited for the client to read earlier ones."""
    late_send_seconds: float = 0.0
    """Of that, the part after ``finished``: only this one delays its end."""
    preempted: list[tuple[float, int]] = field(default_factory=list)
    """When it lost its blocks, and how many computed tokens with them."""
    resumed: list[tuple[float, int]] = field(default_factory=list)
    """When it got blocks again, and how many of its tokens the cache still held."""
    parked: list[tuple[float, str]] = field(default_factory=list)
    """When it began to wait for a prefix that another request computed, and whose id that was."""


Pressure: TypeAlias = tuple[int, Shortage | None, int, int]
"""What a step leaves behind: requests that wait; what the first of those waits for; token slots in the blocks that running
requests hold; of those, slots that hold a token."""


@dataclass(slots=True)
class StepRecord:
    """One step of the engine."""

    number: int
    start: float
    """``Engine.step`` was called."""
    planned: float
    """The scheduler had a plan."""
    computed: float
    """The runner was done."""
    end: float
    """The outputs were made."""
    seconds: float
    """``StepResult.seconds``: the runner's own."""
    mask_seconds: float
    """Of those, filling the masks of constraints."""
    cpu_seconds: float
    """``StepResult.cpu_seconds``: below threads x seconds where others had the cores."""
    requests: tuple[RequestRecord, ...]
    """One per row of the plan, and so are the next two."""
    starts: tuple[int, ...]
    tokens: tuple[int, ...]
    outputs: int
    """Positions whose logits were computed."""
    num_drafts: int
    waiting: int
    """Requests that were left waiting."""
    shortage: Shortage | None
    """What the first of those waits for."""
    kv_reserved: int
    """Token slots in the blocks that running requests hold."""
    kv_used: int
    """Of those, slots that hold a token."""
    shared_keys: int = 0
    """``StepResult.shared_keys``."""
