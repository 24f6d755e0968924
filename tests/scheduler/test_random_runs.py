"""The scheduler under everything at once: random arrivals, aborts, priorities, deadlines, pools and policies.

The oracle is ``FakeRunner``: every request must get exactly the tokens it would get alone, and every cached position
must hold its own history when it is read. After each step all records must agree; at the end no block may be held.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forno.cache import ContiguousCache, KvCache
from forno.config import SchedulerConfig, SpeculativeConfig
from forno.engine.engine import Engine
from forno.errors import DeadlineError, NumericsError, PromptTooLongError, QueueFullError, RequestError
from forno.request import FinishReason, Request, SamplingParams, StepPlan
from forno.scheduler import Scheduler
from tests.helpers.fake_runner import VOCAB, FakeRunner, unbatched

BLOCK = 4


@dataclass
class Clock:
    now: float = 1.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Expected:
    request: Request
    tokens: list[int] = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    prompt_logprobs: list = field(default_factory=list)
    aborted: bool = False
    fails: bool = False


configs = st.builds(
    SchedulerConfig,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(6, 40),
    enable_chunked_prefill=st.booleans(),
    long_prefill_token_threshold=st.sampled_from([0, 0, 1, 3, 8]),
    scheduling_policy=st.sampled_from(["fcfs", "priority"]),
    batching=st.sampled_from(["continuous", "continuous", "static", "dynamic"]),
    batch_max_delay=st.just(0.05),
    max_num_queued_reqs=st.sampled_from([0, 5]),
    max_num_queued_tokens=st.sampled_from([0, 60]),
)
speculatives = st.builds(
    SpeculativeConfig,
    speculative=st.sampled_from(["none", "ngram", "ngram"]),
    num_speculative_tokens=st.integers(1, 9),
    prompt_lookup_max=st.integers(2, 4),
    prompt_lookup_min=st.integers(1, 2),
    speculative_max_rows=st.sampled_from([2, 8, 100]),
)
# Few distinct prefixes, so that hits, waits and evictions are common.
prompts = st.tuples(st.sampled_from([0, 0, 1]), st.integers(0, 30), st.lists(st.integers(0, 3), max_size=6)).map(
    lambda p: tuple((7 * p[0] + i) % 250 for i in range(p[1])) + tuple(p[2])
)


class Run(RuleBasedStateMachine):
    @initialize(
        config=configs,
        speculative=speculatives,
        num_blocks=st.integers(2, 16),
        caching=st.booleans(),
        burst=st.sampled_from([1, 1, 1, 3]),
        vocab=st.sampled_from([VOCAB, 2]),
        reservation=st.sampled_from(["paged", "paged", "longest", "as asked"]),
    )
    def start(
        self,
        config: SchedulerConfig,
        speculative: SpeculativeConfig,
        num_blocks: int,
        caching: bool,
        burst: int,
        vocab: int,
        reservation: str,
    ) -> None:
        self.clock = Clock()
        self.runner = FakeRunner(num_blocks, BLOCK, burst, vocab=vocab)
        if reservation == "paged":
            cache = KvCache(num_blocks, BLOCK, caching, explain_salts=True)
        else:
            cache = ContiguousCache(num_blocks, BLOCK, 60, as_asked=reservation == "as asked")
        self.scheduler = Scheduler(config, cache, 60, self.clock, speculative=speculative)
        self.engine = Engine(self.runner, self.scheduler)
        self.live: dict[str, Expected] = {}
        self.serial = 0

    @rule(
        prompt=prompts,
        n=st.sampled_from([1, 1, 1, 3]),
        max_tokens=st.integers(0, 24),
        priority=st.integers(0, 2),
        salt=st.sampled_from(["", "", "other"]),
        patience=st.sampled_from([None, None, None, 0.02, 0.2]),
        eos=st.sampled_from([(), tuple(range(0, 250, 9))]),
        min_tokens=st.sampled_from([0, 0, 4]),
        logprobs=st.sampled_from([None, None, 1]),
        prompt_logprobs=st.sampled_from([None, None, None, 1]),
        fails_at=st.sampled_from([None, None, None, None, 0, 2]),
    )
    def add(self, prompt, n, max_tokens, priority, salt, patience, eos, min_tokens, logprobs, prompt_logprobs, fails_at):
        sampling = SamplingParams(
            max_tokens=max_tokens, min_tokens=min(min_tokens, max_tokens), logprobs=logprobs, prompt_logprobs=prompt_logprobs
        )
        self.serial += 1
        for child in range(n):
            request = Request(
                id=f"{self.serial}-{child}",
                prompt=prompt,
                sampling=sampling,
                priority=priority,
                cache_salt=salt,
                group=f"group {self.serial}",
                deadline=None if patience is None else self.clock.now + patience,
                eos_token_ids=eos,
            )
            try:
                self.engine.add_request(request)
            except PromptTooLongError:
                limit = min(60, self.runner.num_blocks * BLOCK)
                whole = not self.scheduler.config.enable_chunked_prefill
                budget = self.scheduler.config.max_num_batched_tokens
                assert len(prompt) + max_tokens > limit or (whole and len(prompt) > budget)
            except QueueFullError:
                assert self.scheduler.config.max_num_queued_reqs or self.scheduler.config.max_num_queued_tokens
            except RequestError:
                assert not prompt
            else:
                self.live[request.id] = Expected(request, fails=fails_at is not None)
                if fails_at is not None:
                    self.runner.fail[(request.id, fails_at)] = NumericsError("made up")

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data) -> None:
        id = data.draw(st.sampled_from(sorted(self.live)))
        self.live[id].aborted |= self.engine.abort(id)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.06]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(steps=st.integers(1, 4))
    def steps(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        computed, ran = self.runner.computed, bool(self.scheduler.running)
        idle = self.engine.idle_for()
        ended = self.scheduler.num_unreported
        outputs = self.engine.step()
        self.clock.now += self.runner.seconds
        progress = self.runner.computed > computed
        assert progress or outputs or ended or idle != 0.0, "a step with work computed nothing"
        assert progress or not ran or outputs, "requests run but nothing was computed"
        self.engine.check_integrity()
        for output in outputs:
            self.take(output)

    def take(self, output) -> None:
        expected = self.live[output.id]
        expected.tokens += output.token_ids
        expected.logprobs += output.logprobs
        expected.prompt_logprobs += output.prompt_logprobs
        assert output.num_generated_tokens == len(expected.tokens)
        if output.finish_reason is not None:
            del self.live[output.id]
            self.check_end(expected, output)

    def check_end(self, expected: Expected, output) -> None:
        request, alone = expected.request, unbatched(expected.request, self.runner.vocab)
        assert tuple(expected.tokens) == alone[0][: len(expected.tokens)], "a batch-mate changed the tokens"
        if output.finish_reason is FinishReason.ABORT:
            assert expected.aborted
        elif output.finish_reason is FinishReason.ERROR:
            late = isinstance(output.error, DeadlineError) and request.deadline is not None
            assert late or (isinstance(output.error, NumericsError) and expected.fails)
        else:
            assert (tuple(expected.tokens), output.finish_reason) == alone
            if request.sampling.logprobs is not None:
                assert [lp.token for lp in expected.logprobs] == expected.tokens
            if request.sampling.prompt_logprobs is not None:
                assert [lp.token for lp in expected.prompt_logprobs] == list(request.prompt[1:])
                assert output.num_cached_tokens == 0

    @invariant()
    def records_agree(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(5000):
            if not self.engine.has_work:
                break
            self.clock.now += self.engine.idle_for() or 0.0
            self.step()
        assert not self.live, "a request never finished"
        assert self.scheduler.cache.num_free == self.scheduler.cache.num_blocks, "a block leaked"
        assert not self.runner.requests, "the runner still holds a request"
        assert len(self.engine.output) == 0
        assert len(self.scheduler._in_flight) == 0
        assert self.scheduler.waiting.num_tokens == 0


Run.TestCase.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRandomRuns = Run.TestCase


def test_copies_under_pressure() -> None:
    """Prompts that branch inside blocks, and pools so small that a source is often handed out again in the same step.

    The runs are seeded, and the cases that the order of copies is about are counted, so they do occur.
    """
    seen: Counter[str] = Counter()
    for seed in range(60):
        rng = random.Random(seed)
        runner = FakeRunner(rng.randint(5, 9), BLOCK)
        config = SchedulerConfig(
            max_num_seqs=4,
            max_num_batched_tokens=rng.choice([16, 24]),
            scheduling_policy="priority",
            enable_chunked_prefill=rng.random() < 0.8,
        )
        scheduler = Scheduler(config, KvCache(runner.num_blocks, BLOCK), 60, Clock())
        engine = Engine(runner, scheduler)
        requests: dict[str, Request] = {}
        tokens: dict[str, tuple[int, ...]] = {}
        aborted: set[str] = set()
        while len(requests) < 40 or engine.has_work:
            for _ in range(rng.choice([0, 0, 1, 3]) if len(requests) < 40 else 0):
                request = branching(rng, str(len(requests)), [requests[id].prompt + tokens[id] for id in tokens])
                requests[request.id] = request
                engine.add_request(request)
            if rng.random() < 0.05 and requests:
                id = rng.choice(list(requests))
                aborted |= {id} if engine.abort(id) else set()
            before = len(runner.plans)
            for output in engine.step():
                tokens[output.id] = tokens.get(output.id, ()) + output.token_ids
            engine.check_integrity()
            for plan in runner.plans[before:]:
                note(seen, plan, scheduler)
        for id, request in requests.items():
            alone = unbatched(request)[0]
            assert tokens[id] == (alone[: len(tokens[id])] if id in aborted else alone)
        assert scheduler.cache.num_free == runner.num_blocks
    assert seen["copies"] > 500
    assert all(seen[case] for case in ("copied into later", "computed into later", "resumed")), seen
    assert not seen["in vain"], "somebody joined and was preempted in the same step"


def branching(rng: random.Random, id: str, earlier: list[tuple[int, ...]]) -> Request:
    """A request whose prompt mostly goes on from the beginning of an earlier one."""
    stem = rng.choice(earlier)[: rng.randint(0, 14)] if earlier and rng.random() < 0.8 else ()
    prompt = (*stem, *(rng.randint(0, 2) for _ in range(rng.randint(0 if stem else 1, 15 - len(stem)))))
    salt = rng.choice(["", "", "", "salt"])
    return Request(id, prompt, SamplingParams(max_tokens=rng.randint(1, 6)), priority=rng.randint(0, 2), cache_salt=salt)


def note(seen: Counter[str], plan: StepPlan, scheduler: Scheduler) -> None:
    """Count what is special about the copies of ``plan``."""
    computed = {row.blocks[p // BLOCK] for row in plan.rows for p in range(row.start, row.start + row.num_tokens)}
    resumed = {s.index for s in scheduler.running if s.num_preemptions}
    for i, (source, destination) in enumerate(plan.copies):
        seen["copies"] += 1
        seen["copied into later"] += source in [d for _, d in plan.copies[i + 1 :]]
        seen["computed into later"] += source in computed
        seen["resumed"] += any(destination in row.blocks for row in plan.rows if row.request in resumed)
        seen["in vain"] += not any(destination in row.blocks for row in plan.rows)
