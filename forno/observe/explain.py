"""Where the time of one request went: its life cut into segments without gaps, each with a reason.

Read from the records alone, when somebody asks. What a step would have taken without some of its rows comes from a cost
model that is passed in; only ratios of what it says are used, so that the parts always add up to what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from forno.observe.explanation import Chunk, Explanation, Kind, Phase
from forno.observe.record import RequestRecord, Shortage, StepRecord

Ints = Sequence[int]
Predict = Callable[[Sequence[Ints], Sequence[Ints], Ints], Sequence[float]]
"""(starts and tokens of every row, outputs) of many steps to what each takes, in seconds or in any other unit."""
WEIGHTS = 8
"""Without a cost model: reading the weights takes a step as long as this many tokens."""
CURRENT_STEP = "step"
"""What a request waits for that came while a step ran: its end."""
ENGINE = "engine"
"""What it waits for between steps: the engine's thread."""


def by_tokens(starts: Sequence[Ints], tokens: Sequence[Ints], outputs: Ints) -> list[float]:
    """The cost of steps where no model is known: one per token, and the weights'."""
    return [WEIGHTS + sum(rows) for rows in tokens]


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
        of_its_time = [_Step(s, record) for s in steps if s.end > record.arrival and s.start < done]
        _predict([step for step in of_its_time if step.at is not None], predict)
        _Engine(found, idle).walk(of_its_time, horizon, done)
    found.cut(done, Kind.TOKENIZING, Phase.ARRIVING)  # of one that the engine never took
    if record.sent and record.finished:
        blocked = min(record.late_send_seconds, max(0.0, record.sent - done))
        found.cut(record.sent - blocked, Kind.RESPONDING, Phase.LEAVING)
        found.cut(record.sent, Kind.CLIENT, Phase.LEAVING)
    return found


class _Step:
    """A step as one request sees it."""

    __slots__ = ("again", "alone", "at", "part", "prompt", "prompts", "record", "rows")

    def __init__(self, record: StepRecord, request: RequestRecord) -> None:
        self.record = record
        self.at = next((i for i, r in enumerate(record.requests) if r.serial == request.serial), None)
        """Its row, if it had one."""
        self.prompts = {i for i in range(len(record.requests)) if self._is_prompt(i)}
        """Rows that compute a prompt, or again what was lost."""
        self.prompt = self.again = False
        self.rows: list[int] = []
        """What the step would have computed if the others had not been in its way: its own chunk, or all that decode."""
        self.part = self.alone = 1.0
        """What a step of those ``rows``, and of its own row alone, takes as shares of what this one takes."""
        if self.at is not None:
            lost = max((tokens for at, tokens in request.preempted if at < record.planned), default=0)
            self.again = record.starts[self.at] < lost
            self.prompt = self.again or self.at in self.prompts
            self.rows = [self.at] if self.prompt else [i for i in range(len(record.requests)) if i not in self.prompts]

    def _is_prompt(self, i: int) -> bool:
        """Whether row ``i`` is not one token after the last, with guesses or without."""
        step = self.record
        return step.starts[i] < step.requests[i].num_prompt or (step.tokens[i] > 1 and not step.num_drafts)

    def tokens(self, rows: Iterable[int]) -> dict[str, int]:
        """Tokens that requests compute in these rows."""
        return {self.record.requests[i].id: self.record.tokens[i] for i in rows}


def _predict(steps: Sequence[_Step], predict: Predict) -> None:
    """Fill ``part`` and ``alone`` of all steps, asking the cost model once."""
    asked: list[tuple[Ints, Ints, int]] = []
    for step in steps:
        record, at = step.record, step.at
        assert at is not None
        starts, tokens = record.starts, record.tokens
        outputs = min(len(step.rows), record.outputs)
        asked.append((starts, tokens, record.outputs))
        asked.append(([starts[i] for i in step.rows], [tokens[i] for i in step.rows], outputs))
        asked.append(([starts[at]], [tokens[at]], min(1, record.outputs)))
    if asked:
        starts_of, tokens_of, outputs_of = zip(*asked, strict=True)
        costs = predict(starts_of, tokens_of, outputs_of)
        for i, step in enumerate(steps):
            whole, part, alone = costs[3 * i : 3 * i + 3]
            if len(step.rows) < len(step.record.requests):
                step.part = min(1.0, float(part) / float(whole))
            if len(step.record.requests) > 1:
                step.alone = min(1.0, float(alone) / float(whole))


class _Engine:
    """Cuts the time that a request spent in the engine."""

    def __init__(self, found: Explanation, idle: str) -> None:
        self.found, self.record, self.idle = found, found.record, idle
        self.phase = Phase.WAITING
        self.rows = 0
        """Requests that decoded in its decode steps."""

    def walk(self, steps: Sequence[_Step], horizon: float, done: float) -> None:
        if horizon > self.record.arrival:
            until = steps[0].record.start if steps else min(horizon, done)
            self.found.cut(until, Kind.UNRECORDED, Phase.UNRECORDED)
        for step in steps:
            self._between(step.record.start)
            if step.at is None:
                self._without(step)
            else:
                self._within(step)
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

    def _without(self, step: _Step) -> None:
        """A step in which it had no row."""
        record = step.record
        came_later = record.planned < self.record.arrival or record.shortage is None
        lacking: str = CURRENT_STEP if came_later or record.shortage is None else record.shortage
        if self._is_parked(step):
            lacking = Shortage.PREFIX
        tokens = step.tokens(range(len(record.requests)))
        seconds = self._wait(record.end, lacking, tokens, record.number)
        if lacking == Shortage.TOKENS:
            prompts = sum(step.tokens(step.prompts).values())
            self.found.waited_for_decodes += seconds * (1 - prompts / (WEIGHTS + sum(tokens.values())))

    def _wait(self, until: float, lacking: str, shares: dict[str, int], step: int = 0) -> float:
        kind, self.phase = Kind.QUEUED, Phase.WAITING
        if self._is_waiting(until) and any(at < until for at, _ in self.record.preempted):
            kind, self.phase = Kind.PREEMPTED, Phase.PREEMPTED
        seconds = self.found.cut(until, kind, self.phase, step)
        if seconds:
            self.found.waited_for[lacking] = self.found.waited_for.get(lacking, 0.0) + seconds
            self.found.blame(kind, seconds, shares)
        return seconds

    def _is_waiting(self, time: float) -> bool:
        """Whether it holds no blocks right before ``time``."""
        record = self.record
        if not record.scheduled or time <= record.scheduled:
            return True
        lost = sum(1 for at, _ in record.preempted if at < time)
        return lost > sum(1 for at, _ in record.resumed if at < time)

    def _is_parked(self, step: _Step) -> bool:
        """Whether the request whose prefix it waits for computes a prompt in ``step``."""
        owners = {owner for at, owner in self.record.parked if at <= step.record.planned}
        return any(step.record.requests[i].id in owners for i in step.prompts)

    # -- computing ----------------------------------------------------------------------------------------------

    def _within(self, step: _Step) -> None:
        """A step in which it has a row."""
        found, record = self.found, step.record
        self.phase = Phase.PREFILL if step.prompt else Phase.DECODE
        found.cut(record.planned, Kind.OVERHEAD, self.phase, record.number)
        masked = found.cut(
            min(record.planned + record.mask_seconds, record.computed), Kind.CONSTRAINED, self.phase, record.number
        )
        found.blame(Kind.CONSTRAINED, masked, {r.id: 1 for r in record.requests if r.constrained})
        begun = found.segments[-1].end if found.segments else found.start
        seconds = max(0.0, record.computed - begun)
        if step.prompt:
            self._prompt(step, begun + seconds * step.part)
        else:
            self._decode(step, begun + seconds * step.part)
            found.decode_alone += seconds * step.alone
        found.cut(record.end, Kind.DETOKENIZING, self.phase, record.number)

    def _prompt(self, step: _Step, until: float) -> None:
        """Its chunk takes until then by itself."""
        found, record, at = self.found, step.record, step.at
        assert at is not None
        own = found.cut(until, Kind.RECOMPUTE if step.again else Kind.PREFILL, self.phase, record.number)
        beside = found.cut(record.computed, Kind.BESIDE, self.phase, record.number)
        others = [i for i in range(len(record.requests)) if i != at]
        found.blame(Kind.BESIDE, beside, step.tokens(others))
        whole = record.end - record.start
        found.chunks.append(Chunk(record.number, record.starts[at], record.tokens[at], whole, own, len(others), step.again))

    def _decode(self, step: _Step, until: float) -> None:
        """A step of all that decode takes until then."""
        found, record = self.found, step.record
        found.cut(until, Kind.DECODE, self.phase, record.number)
        slowed = found.cut(record.computed, Kind.SLOWED, self.phase, record.number)
        prompts = step.tokens(step.prompts)
        found.blame(Kind.SLOWED, slowed, prompts)
        found.slowed_steps += bool(prompts)
        found.slowed_tokens += sum(prompts.values())
        found.decode_steps += 1
        self.rows += len(step.rows)
