"""An engine on the fake runner whose clock moves by itself, so that every part of a step takes some of its time."""

from __future__ import annotations

import random
from dataclasses import replace

from forno.cache import KvCache
from forno.config import SchedulerConfig, SpeculativeConfig
from forno.engine.engine import Engine
from forno.observe.explain import explain
from forno.observe.explanation import Explanation
from forno.observe.recorder import Recorder
from forno.request import Request, RequestOutput, SamplingParams, StepPlan, StepResult
from forno.scheduler import Scheduler
from tests.helpers.any_token import AnyToken
from tests.helpers.fake_runner import FakeRunner, some_tokens

BLOCK = 4
STEP, TOKEN, MASK = 0.002, 0.001, 0.003
"""Seconds of a step, of each of its tokens, and of its masks if anybody has a constraint."""


class Clock:
    """Every look at it takes a microsecond."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


class TimedRunner(FakeRunner):
    """Steps take ``STEP`` and ``TOKEN`` for each token, masks on top."""

    def __init__(self, clock: Clock, num_blocks: int) -> None:
        super().__init__(num_blocks, BLOCK)
        self.clock = clock

    def run(self, plan: StepPlan) -> StepResult:
        masks = MASK if any(self.requests[row.request].constraint for row in plan.rows) else 0.0
        self.clock.now += STEP + TOKEN * plan.num_tokens + masks
        return replace(super().run(plan), mask_seconds=masks)


def step_cost(starts: object, tokens: list[list[int]], outputs: object) -> list[float]:
    """What ``TimedRunner`` takes, as a cost model says it."""
    return [STEP + TOKEN * sum(rows) for rows in tokens]


class Timed:
    """The engine, its recorder, and short ways to use both."""

    def __init__(
        self,
        num_blocks: int = 64,
        max_steps: int = 4096,
        caching: bool = True,
        speculative: SpeculativeConfig | None = None,
        **config: object,
    ) -> None:
        self.clock = Clock()
        self.runner = TimedRunner(self.clock, num_blocks)
        self.recorder = Recorder(self.clock, max_steps=max_steps)
        settings = SchedulerConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 16, "mixed_step_stretch": 0.0, **config})
        scheduler = Scheduler(settings, KvCache(num_blocks, BLOCK, caching), 200, self.clock, self.recorder, speculative)
        self.engine = Engine(self.runner, scheduler, recorder=self.recorder)
        self.outputs: list[RequestOutput] = []

    def add(
        self, id: str, prompt: int | tuple[int, ...] = 4, max_tokens: int = 4, constrained: bool = False, **options
    ) -> None:
        """As the server does: bytes, tokens, then the engine."""
        ids = prompt if isinstance(prompt, tuple) else some_tokens(id, prompt)
        begun, received = self.clock(), self.clock()
        constraint = AnyToken() if constrained else None
        request = Request(id, ids, SamplingParams(max_tokens=max_tokens), self.clock(), constraint=constraint, **options)
        record = self.recorder.announce(request)
        record.begun, record.received = begun, received
        self.engine.add_request(request)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.outputs += self.engine.step()
            self.clock.now += 1e-4

    def run(self) -> None:
        for _ in range(3000):
            if not self.engine.has_work:
                return
            self.clock.now += self.engine.idle_for() or 0.0
            self.step()
        raise AssertionError("it does not end")

    def send(self, id: str, seconds: float, blocked: float = 0.0) -> None:
        """The response ended so long after the engine did, and waited for its client meanwhile."""
        record = self.recorder.request(id)
        record.sent, record.late_send_seconds = record.finished + seconds, blocked

    def explain(self, id: str, **options) -> Explanation:
        record = self.recorder.request(id)
        steps = self.recorder.during(record.arrival, record.finished or self.clock.now)
        return explain(record, steps, self.recorder.horizon, self.clock(), **{"predict": step_cost, **options})


def check(found: Explanation) -> None:
    """The parts are a partition: no gap, no overlap, nothing outside, every sum the whole."""
    assert found.segments, "nothing is known of it"
    assert found.segments[0].start == found.start
    assert found.segments[-1].end == found.end
    for before, after in zip(found.segments, found.segments[1:], strict=False):
        assert before.end == after.start
        assert after.start < after.end
    assert abs(sum(p.seconds for p in found.parts.values()) - found.seconds) < 1e-9
    assert abs(sum(s.end - s.start for s in found.phases()) - found.seconds) < 1e-9
    for part in found.parts.values():
        assert all(seconds > 0 for seconds in part.by.values())
        assert sum(part.by.values()) < part.seconds + 1e-9
        assert found.record.id not in part.by or part.kind == "constrained"
    waited = found.of("queued", "preempted")
    assert abs(sum(found.waited_for.values()) - waited) < 1e-9


def random_run(seed: int) -> Timed:
    """Random traffic to its end: small caches, shared prefixes, aborts, constraints, classes, answers to one prompt."""
    rng = random.Random(seed)
    timed = Timed(
        num_blocks=rng.choice([6, 10, 40]),
        max_steps=rng.choice([8, 4096]),
        caching=rng.random() < 0.8,
        speculative=SpeculativeConfig(speculative=rng.choice(["none", "ngram"])),
        max_num_seqs=rng.choice([1, 3, 6]),
        max_num_batched_tokens=rng.choice([6, 16, 40]),
        enable_chunked_prefill=rng.random() < 0.8,
        long_prefill_token_threshold=rng.choice([0, 0, 3]),
        scheduling_policy=rng.choice(["fcfs", "priority"]),
        batching=rng.choice(["continuous", "continuous", "static", "dynamic"]),
    )
    made = 0
    while made < 14:
        for _ in range(rng.choice([0, 0, 1, 3])):
            made += 1
            prompt = (*range(rng.choice([0, 0, 9, 14])), *(rng.randint(0, 200) for _ in range(rng.randint(1, 6))))
            if not timed.runner.num_blocks * BLOCK >= len(prompt) + 8 or timed.runner.num_blocks * BLOCK < 28:
                prompt = prompt[:6]
            if len(prompt) > timed.engine.scheduler.config.max_num_batched_tokens:
                prompt = prompt[:6]
            options = {"priority": rng.randint(0, 2), "constrained": rng.random() < 0.2}
            timed.add(f"r{made}", prompt, rng.randint(1, 8), **options)
        if rng.random() < 0.2 and made:
            timed.engine.abort(f"r{rng.randint(1, made)}")
        if rng.random() < 0.2:
            timed.clock.now += rng.choice([0.0005, 0.04])
        if timed.engine.has_work:
            timed.step(rng.randint(1, 3))
    timed.run()
    for record in timed.recorder.finished():
        seconds = rng.choice([0.0, 0.001, 0.5])
        timed.send(record.id, seconds, rng.choice([0.0, seconds / 2, seconds]))
    return timed
