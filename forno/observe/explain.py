"""Where the time of one request went: its life cut into segments without gaps, each with a reason.

Read from the records alone, when somebody asks. What a step would have taken without some of its rows comes from a cost
model that is passed in; only ratios of what it says are used, so that the parts always add up to what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from forno.cache.misses import Lookup
from forno.observe.record import RequestRecord, Shortage, StepRecord

Predict = Callable[[Sequence[int], Sequence[int], int], float]
"""(starts, tokens, outputs) of a step's rows to what it takes, in seconds or in any other unit."""
WEIGHTS = 8
"""Without a cost model: reading the weights takes a step as long as this many tokens."""
CURRENT_STEP = "step"
"""What a request waits for that came while a step ran: its end."""
ENGINE = "engine"
"""What it waits for between steps: the engine's thread."""


class Kind(StrEnum):
    """What a part of a request's time was spent on."""

    READING = "reading"
    """Its bytes came, from the first to the last."""
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
    """Its first byte was read, or whatever is known to have happened first."""
    end: float
    """Its last byte was sent; of one that still runs: now."""
    segments: list[Segment] = field(default_factory=list)
    parts: dict[Kind, Part] = field(default_factory=dict)
    waited_for: dict[str, float] = field(default_factory=dict)
    """Seconds in the queue by what was lacking: a ``Shortage``, or the end of the step that was running."""
    chunks: list[Chunk] = field(default_factory=list)
    decode_steps: int = 0
    decode_alone: float = 0.0
    """What its decode steps would have taken without any other request, by the cost model."""
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


def by_tokens(starts: Sequence[int], tokens: Sequence[int], outputs: int) -> float:
    """The cost of a step where no model is known: one per token, and the weights'."""
    return WEIGHTS + sum(tokens) if tokens else 0.0


def explain(
    record: RequestRecord,
    steps: Sequence[StepRecord],
    horizon: float,
    now: float,
    predict: Predict = by_tokens,
    idle: str = ENGINE,
) -> Explanation:
    """Explain ``record`` by the ``steps`` of its time; of those before ``horizon`` nothing is known.

    ``idle``: what a request waits for while no step runs; under dynamic batching, that a batch fills.
    """
    done = record.finished or now
    start = record.begun or record.received or record.tokenized or record.arrival
    found = Explanation(record, start, max(done, record.sent) if record.finished else now)
    found.cut(record.received, Kind.READING, Phase.ARRIVING)
    found.cut(record.arrival, Kind.TOKENIZING, Phase.ARRIVING)
    if record.serial:
        of_its_time = [s for s in steps if s.end > record.arrival and s.start < done]
        _Engine(found, predict, idle).walk(of_its_time, horizon, done)
    found.cut(done, Kind.TOKENIZING, Phase.ARRIVING)  # of one that the engine never took
    if record.sent and record.finished:
        blocked = min(record.late_send_seconds, max(0.0, record.sent - done))
        found.cut(record.sent - blocked, Kind.RESPONDING, Phase.LEAVING)
        found.cut(record.sent, Kind.CLIENT, Phase.LEAVING)
    return found


class _Engine:
    """Cuts the time that a request spent in the engine."""

    def __init__(self, found: Explanation, predict: Predict, idle: str) -> None:
        self.found, self.record, self.predict, self.idle = found, found.record, predict, idle
        self.phase = Phase.WAITING
        self.rows = 0
        """Requests that decoded in its decode steps."""

    def walk(self, steps: Sequence[StepRecord], horizon: float, done: float) -> None:
        if horizon > self.record.arrival:
            until = steps[0].start if steps else min(horizon, done)
            self.found.cut(until, Kind.UNRECORDED, Phase.UNRECORDED)
        for step in steps:
            self._between(step.start)
            at = next((i for i, r in enumerate(step.requests) if r.serial == self.record.serial), None)
            if at is None:
                self._without(step)
            else:
                self._within(step, at)
        self._between(done)
        if self.found.decode_steps:
            self.found.decode_rows = self.rows / self.found.decode_steps

    # -- waiting ------------------------------------------------------------------------------------------------

    def _between(self, until: float) -> None:
        """No step runs."""
        if self._is_waiting(until):
            self._wait(until, self.idle, {})
        else:
            self.found.cut(until, Kind.OVERHEAD, self.phase)

    def _without(self, step: StepRecord) -> None:
        """A step in which it had no row."""
        came_later = step.planned < self.record.arrival or not step.waiting
        lacking: str = CURRENT_STEP if came_later or step.shortage is None else step.shortage
        if self._is_parked(step):
            lacking = Shortage.PREFIX
        self._wait(step.end, lacking, {r.id: n for r, n in zip(step.requests, step.tokens, strict=True)}, step.number)

    def _wait(self, until: float, lacking: str, shares: dict[str, int], step: int = 0) -> None:
        kind, self.phase = Kind.QUEUED, Phase.WAITING
        if self._is_waiting(until) and self._lost(until):
            kind, self.phase = Kind.PREEMPTED, Phase.PREEMPTED
        seconds = self.found.cut(until, kind, self.phase, step)
        if seconds:
            self.found.waited_for[lacking] = self.found.waited_for.get(lacking, 0.0) + seconds
            self.found.blame(kind, seconds, shares)

    def _is_waiting(self, time: float) -> bool:
        """Whether it holds no blocks right before ``time``."""
        record = self.record
        if not record.scheduled or time <= record.scheduled:
            return True
        lost = sum(1 for at, _ in record.preempted if at < time)
        return lost > sum(1 for at, _ in record.resumed if at < time)

    def _lost(self, time: float) -> int:
        """Tokens that it had computed before ``time`` and lost: up to there, it computes again."""
        return max((tokens for at, tokens in self.record.preempted if at < time), default=0)

    def _is_parked(self, step: StepRecord) -> bool:
        """Whether the request whose prefix it waits for computes a prompt in ``step``."""
        owners = {owner for at, owner in self.record.parked if at <= step.planned}
        return any(r.id in owners and _is_prompt(r, start, n, step) for r, start, n in _rows(step))

    # -- computing ----------------------------------------------------------------------------------------------

    def _within(self, step: StepRecord, at: int) -> None:
        """A step in which its row is number ``at``."""
        found, start, tokens = self.found, step.starts[at], step.tokens[at]
        again = start < self._lost(step.planned)
        prompt = again or _is_prompt(self.record, start, tokens, step)
        self.phase = Phase.PREFILL if prompt else Phase.DECODE
        found.cut(step.planned, Kind.OVERHEAD, self.phase, step.number)
        if step.mask_seconds:
            masked = found.cut(min(step.planned + step.mask_seconds, step.computed), Kind.CONSTRAINED, self.phase, step.number)
            found.blame(Kind.CONSTRAINED, masked, {r.id: 1 for r in step.requests if r.constrained})
        if prompt:
            self._prompt(step, at, again)
        else:
            self._decode(step, at)
        found.cut(step.end, Kind.DETOKENIZING, self.phase, step.number)

    def _prompt(self, step: StepRecord, at: int, again: bool) -> None:
        found, start, tokens = self.found, step.starts[at], step.tokens[at]
        ratio = self._share(step, [at])
        begun = found.segments[-1].end
        own = begun + (step.computed - begun) * ratio
        seconds = found.cut(own, Kind.RECOMPUTE if again else Kind.PREFILL, self.phase, step.number)
        beside = found.cut(step.computed, Kind.BESIDE, self.phase, step.number)
        found.blame(Kind.BESIDE, beside, _tokens_of(step, [i for i in range(len(step.requests)) if i != at]))
        whole = step.end - step.start
        found.chunks.append(Chunk(step.number, start, tokens, whole, seconds, len(step.requests) - 1, again))

    def _decode(self, step: StepRecord, at: int) -> None:
        found = self.found
        prompts = [i for i, (r, start, n) in enumerate(_rows(step)) if i != at and _is_prompt(r, start, n, step)]
        others = set(prompts)
        begun = found.segments[-1].end
        ratio = self._share(step, [i for i in range(len(step.requests)) if i not in others])
        found.cut(begun + (step.computed - begun) * ratio, Kind.DECODE, self.phase, step.number)
        slowed = found.cut(step.computed, Kind.SLOWED, self.phase, step.number)
        found.blame(Kind.SLOWED, slowed, _tokens_of(step, prompts))
        found.decode_steps += 1
        found.decode_alone += (step.computed - begun) * self._share(step, [at])
        self.rows += len(step.requests) - len(prompts)

    def _share(self, step: StepRecord, rows: Sequence[int]) -> float:
        """What a step of these rows alone would take, as a share of what it took."""
        if len(rows) == len(step.requests):
            return 1.0
        whole = self.predict(step.starts, step.tokens, step.outputs)
        outputs = min(len(rows), step.outputs)
        part = self.predict([step.starts[i] for i in rows], [step.tokens[i] for i in rows], outputs)
        return min(1.0, part / whole) if whole > 0 else 1.0


def _rows(step: StepRecord) -> list[tuple[RequestRecord, int, int]]:
    return list(zip(step.requests, step.starts, step.tokens, strict=True))


def _is_prompt(record: RequestRecord, start: int, tokens: int, step: StepRecord) -> bool:
    """Whether a row computes a prompt, or again what was lost: not one token after the last, with guesses or without."""
    return start < record.num_prompt or (tokens > 1 and not step.num_drafts)


def _tokens_of(step: StepRecord, rows: Sequence[int]) -> dict[str, int]:
    return {step.requests[i].id: step.tokens[i] for i in rows}
