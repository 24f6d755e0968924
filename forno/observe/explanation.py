"""Where the time of one request went, as plain data: segments without gaps, each with a reason, and what they add up to.

Knows kinds of time and a request's record, no step: ``explain`` cuts the segments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from forno.cache.misses import Lookup
from forno.observe.record import RequestRecord


class Kind(StrEnum):
    """What a part of a request's time was spent on."""

    READING = "reading"
    """Its bytes came, and the event loop read them."""
    TOKENIZING = "tokenizing"
    """JSON, template and tokens; a constraint's compilation."""
    QUEUED = "queued"
    """It waited for its first step, or a running prompt for its share of one."""
    PREFILL = "prefill"
    """Computing its prompt: what its own rows take by themselves."""
    BESIDE = "beside"
    """The rows of others in the steps that computed its prompt."""
    DECODE = "decode"
    """Steps that gave it tokens, as they are without anybody's prompt."""
    SLOWED = "slowed"
    """What the prompts of others added to those steps."""
    PREEMPTED = "preempted"
    """It had lost its blocks and waited for new ones."""
    RECOMPUTE = "recompute"
    """Computing again what it had lost."""
    CONSTRAINED = "constrained"
    """Finding the tokens that constraints allow, its own or those of others in the step."""
    OVERHEAD = "overhead"
    """Planning its steps, and between steps."""
    DETOKENIZING = "detokenizing"
    """Tokens to text, for all requests of the step."""
    RESPONDING = "responding"
    """The engine was done; the event loop had yet to encode and send the rest."""
    CLIENT = "client"
    """Sending waited for the client to read."""
    UNRECORDED = "unrecorded"
    """The steps of that time are not remembered any more."""


class Phase(StrEnum):
    """What a request was at, in a few words: segments of several kinds make up one."""

    ARRIVING = "arriving"
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    LEAVING = "leaving"
    UNRECORDED = "unrecorded"


@dataclass(slots=True)
class Segment:
    """From ``start`` to ``end``, in seconds on the engine's clock."""

    start: float
    end: float
    kind: Kind
    phase: Phase
    step: int = 0
    """Number of the step, if it was within one."""


@dataclass(slots=True)
class Part:
    """All segments of one kind."""

    kind: Kind
    seconds: float = 0.0
    by: dict[str, float] = field(default_factory=dict)
    """Requests that had a share in it, and their seconds: who ran meanwhile, whose prompts, whose rows."""


@dataclass(slots=True)
class Chunk:
    """A step's share of a prompt, or of what was computed again."""

    step: int
    start: int
    """First token."""
    tokens: int
    seconds: float
    """The whole step's."""
    own: float
    """Of those, what the chunk takes by itself."""
    others: int
    """Requests with rows in the same step."""
    again: bool
    """Whether it was computed before, and lost."""


@dataclass(slots=True)
class Explanation:
    """Segments partition the time from ``start`` to ``end``; parts sum them up by kind, phases by what it was at."""

    record: RequestRecord
    start: float
    """Its first byte came, or whatever is known to have happened first."""
    end: float
    """Its last byte was sent; of one that still runs: now."""
    segments: list[Segment] = field(default_factory=list)
    parts: dict[Kind, Part] = field(default_factory=dict)
    waited_for: dict[str, float] = field(default_factory=dict)
    """Seconds in the queue by what was lacking: a ``Shortage``, or the end of the step that was running."""
    waited_for_decodes: float = 0.0
    """Of the seconds that it waited for tokens of steps, those that the steps spent on anything but prompts: about what
    fewer, larger chunks would spare."""
    chunks: list[Chunk] = field(default_factory=list)
    decode_steps: int = 0
    decode_alone: float = 0.0
    """What its decode steps would have taken without any other request, by the cost model."""
    slowed_steps: int = 0
    """Decode steps in which others' prompts were computed too,"""
    slowed_tokens: int = 0
    """and the tokens of those."""
    decode_rows: float = 0.0
    """Requests in a decode step, on average, itself included."""

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def lookup(self) -> Lookup | None:
        return self.record.lookup

    def of(self, *kinds: Kind) -> float:
        """Seconds of these kinds."""
        return sum(self.parts[kind].seconds for kind in kinds if kind in self.parts)

    def phases(self) -> list[Segment]:
        """Neighbouring segments of one phase as one, with the kind of the first."""
        merged: list[Segment] = []
        for s in self.segments:
            if merged and merged[-1].phase is s.phase:
                merged[-1].end = s.end
            else:
                merged.append(Segment(s.start, s.end, s.kind, s.phase, s.step))
        return merged

    def cut(self, until: float, kind: Kind, phase: Phase, step: int = 0) -> float:
        """Everything from where the last segment ended to ``until``; returns its seconds, 0 if that has passed."""
        start = self.segments[-1].end if self.segments else self.start
        until = min(until, self.end)
        if until <= start:
            return 0.0
        self.segments.append(Segment(start, until, kind, phase, step))
        self.parts.setdefault(kind, Part(kind)).seconds += until - start
        return until - start

    def blame(self, kind: Kind, seconds: float, shares: dict[str, int]) -> None:
        """Divide ``seconds`` of a part among requests, by their tokens."""
        total = sum(shares.values())
        if seconds > 0 and total:
            by = self.parts[kind].by
            for id, tokens in shares.items():
                by[id] = by.get(id, 0.0) + seconds * tokens / total
