"""What batching and chunking are known to do, in counts on a clock of steps: a step takes a base and so much a token, as on a
machine where weights are read once a step. The scheduler is the real one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from forno.cache import KvCache
from forno.config import SchedulerConfig
from forno.engine.engine import Engine
from forno.request import Request, SamplingParams
from forno.scheduler import Scheduler
from tests.helpers.fake_runner import FakeRunner, some_tokens

BASE, PER_TOKEN = 0.010, 0.0002
"""Seconds of a step, and of each of its tokens."""
BLOCK = 16


@dataclass
class Timeline:
    """An engine whose steps take what their tokens take."""

    config: SchedulerConfig
    now: float = 0.0
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When each token of a request came."""
    arrivals: dict[str, float] = field(default_factory=dict)
    steps: list[tuple[int, int]] = field(default_factory=list)
    """Rows and tokens of each step."""

    def __post_init__(self) -> None:
        self.runner = FakeRunner(512, BLOCK)
        scheduler = Scheduler(self.config, KvCache(512, BLOCK, True), 4096, lambda: self.now)
        self.engine = Engine(self.runner, scheduler)

    def add(self, id: str, prompt: int, answer: int) -> None:
        self.arrivals[id] = self.now
        sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
        self.engine.add_request(Request(id, some_tokens(id, prompt), sampling, self.now))

    def step(self) -> None:
        before, started = len(self.runner.plans), self.now
        self.runner.seconds = 0.0
        self.runner.on_run = self._take_time
        outputs = self.engine.step()
        if len(self.runner.plans) == before:
            self.now = started + 0.001
        for output in outputs:
            self.times[output.id] += [self.now] * len(output.token_ids)

    def _take_time(self, plan) -> None:
        tokens = sum(row.num_tokens for row in plan.rows)
        self.steps.append((len(plan.rows), tokens))
        self.runner.seconds = BASE + PER_TOKEN * tokens
        self.now += self.runner.seconds

    def run(self) -> None:
        while self.engine.has_work:
            self.step()
        self.engine.check_integrity()

    def ttft(self, id: str) -> float:
        return self.times[id][0] - self.arrivals[id]

    def gaps(self, *ids: str) -> list[float]:
        return sorted(b - a for id in ids for a, b in zip(self.times[id], self.times[id][1:], strict=False))


def p99(values: list[float]) -> float:
    return values[int(0.99 * (len(values) - 1))]


def a_long_prompt_among_decodes(**options) -> Timeline:
    """Eight answers are under way when a prompt of 2,000 tokens comes."""
    t = Timeline(SchedulerConfig(max_num_seqs=16, mixed_step_stretch=0, **options))
    for i in range(8):
        t.add(f"talk-{i}", 16, 60)
    for _ in range(10):
        t.step()
    t.add("long", 2000, 4)
    t.run()
    return t


TALKS = [f"talk-{i}" for i in range(8)]


def test_chunked_prefill_lowers_the_others_itl_and_raises_the_long_prompts_ttft() -> None:
    whole = a_long_prompt_among_decodes(enable_chunked_prefill=False, max_num_batched_tokens=4096)
    chunked = a_long_prompt_among_decodes(max_num_batched_tokens=128)
    assert whole.gaps(*TALKS)[-1] == pytest.approx(BASE + PER_TOKEN * 2008)
    assert chunked.gaps(*TALKS)[-1] == pytest.approx(BASE + PER_TOKEN * 128)
    assert p99(chunked.gaps(*TALKS)) < 0.1 * p99(whole.gaps(*TALKS))
    assert chunked.ttft("long") > 1.3 * whole.ttft("long")


def test_smaller_chunks_go_further_in_both_directions_and_read_the_weights_more_often() -> None:
    runs = [a_long_prompt_among_decodes(max_num_batched_tokens=budget) for budget in (512, 256, 128, 64)]
    worst, ttft, steps = zip(*((t.gaps(*TALKS)[-1], t.ttft("long"), len(t.steps)) for t in runs), strict=True)
    assert list(worst) == sorted(worst, reverse=True)
    assert list(ttft) == sorted(ttft)
    assert list(steps) == sorted(steps)


def test_pacing_bounds_the_others_itl_without_a_smaller_budget() -> None:
    """The default: steps with a prompt take about ``mixed_step_stretch`` times as long as without."""
    free = a_long_prompt_among_decodes(max_num_batched_tokens=512)
    t = Timeline(SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=512, mixed_step_stretch=1.75))
    for i in range(8):
        t.add(f"talk-{i}", 16, 60)
    for _ in range(10):
        t.step()
    t.add("long", 2000, 4)
    t.run()
    assert t.gaps(*TALKS)[-1] < 0.5 * free.gaps(*TALKS)[-1]
    assert t.ttft("long") > free.ttft("long")


def uneven_answers(batching: str) -> Timeline:
    """Thirty-two requests for eight seats; every fourth answer is ten times as long."""
    t = Timeline(SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=256, batching=batching, mixed_step_stretch=0))
    for i in range(32):
        t.add(str(i), 16, 80 if i % 4 == 0 else 8)
    t.run()
    assert sum(len(tokens) for tokens in t.times.values()) == 8 * 80 + 24 * 8
    return t


def idle_share(t: Timeline) -> float:
    """Of seats times steps, those that nobody sat in."""
    return 1 - sum(rows for rows, _ in t.steps) / (8 * len(t.steps))


def test_static_batching_idles_on_uneven_lengths_and_continuous_does_not() -> None:
    static, continuous = uneven_answers("static"), uneven_answers("continuous")
    assert len(static.steps) == 4 * 80, "each of four batches takes as long as its longest answer"
    assert idle_share(static) == pytest.approx(1 - (2 * 80 + 6 * 8) / (8 * 80))
    full = [rows for rows, _ in continuous.steps[: len(continuous.steps) // 2]]
    assert min(full) == 8, "while somebody waits, every seat is taken"
    assert idle_share(continuous) < 0.5 * idle_share(static)
    assert continuous.now < 0.6 * static.now


def test_dynamic_batching_idles_like_static_once_it_runs() -> None:
    assert idle_share(uneven_answers("dynamic")) == pytest.approx(idle_share(uneven_answers("static")))


@pytest.mark.parametrize("batching", ["static", "dynamic"])
def test_batches_of_equal_answers_waste_nothing(batching: str) -> None:
    t = Timeline(SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=256, batching=batching, mixed_step_stretch=0))
    for i in range(16):
        t.add(str(i), 16, 20)
    t.run()
    assert idle_share(t) == 0.0


def test_a_prefix_cache_computes_a_shared_document_once() -> None:
    computed = {}
    for caching in (True, False):
        runner = FakeRunner(512, BLOCK)
        scheduler = Scheduler(SchedulerConfig(max_num_batched_tokens=512), KvCache(512, BLOCK, caching), 4096, lambda: 0.0)
        engine = Engine(runner, scheduler)
        document = some_tokens("document", 160)
        for i in range(8):
            engine.add_request(Request(str(i), (*document, *some_tokens(f"q{i}", 10)), SamplingParams(max_tokens=1)))
        while engine.has_work:
            engine.step()
        computed[caching] = runner.computed
    assert computed == {True: 160 + 8 * 10, False: 8 * 170}
