"""A scheduler on a fake runner and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields

import pytest

from forno.cache import KvCache
from forno.config import SchedulerConfig, SpeculativeConfig
from forno.engine.engine import Engine
from forno.observe.recorder import Recorder
from forno.request import Request, RequestOutput, SamplingParams
from forno.scheduler import Scheduler
from tests.helpers.fake_runner import VOCAB, FakeRunner, some_tokens

BLOCK = 4


@dataclass
class Bench:
    """Short ways to say what a scheduler test does. Every step is followed by an integrity check."""

    engine: Engine
    runner: FakeRunner
    recorder: Recorder
    now: float = 1.0
    outputs: dict[str, list[RequestOutput]] = field(default_factory=dict)

    @property
    def scheduler(self) -> Scheduler:
        return self.engine.scheduler

    def add(self, id: str, prompt: int | tuple[int, ...] = 4, **options) -> Request:
        """``prompt``: ids, or how many different ones. Other names go to ``SamplingParams`` or ``Request``."""
        known = {f.name for f in fields(SamplingParams)}
        sampling = SamplingParams(**{"max_tokens": 4, **{k: v for k, v in options.items() if k in known}})
        ids = prompt if isinstance(prompt, tuple) else some_tokens(id, prompt)
        request = Request(id, ids, sampling, self.now, **{k: v for k, v in options.items() if k not in known})
        self.engine.add_request(request)
        return request

    def step(self) -> dict[str, int]:
        """Tokens computed per request id in one step, in plan order."""
        before = len(self.runner.plans)
        ids = {index: request.id for index, request in self.runner.requests.items()}
        for output in self.engine.step():
            self.outputs.setdefault(output.id, []).append(output)
        self.engine.check_integrity()
        self.now += 0.01
        if len(self.runner.plans) == before:
            return {}
        return {ids[row.request]: row.num_tokens for row in self.runner.plans[-1].rows}

    def finish(self) -> None:
        for _ in range(1000):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work
        assert self.scheduler.cache.num_free == self.scheduler.cache.num_blocks

    def tokens(self, id: str) -> tuple[int, ...]:
        return sum((output.token_ids for output in self.outputs[id]), ())

    def end(self, id: str) -> RequestOutput:
        return self.outputs[id][-1]

    def running(self) -> list[str]:
        return [s.request.id for s in self.scheduler.running]


@pytest.fixture
def bench() -> Callable[..., Bench]:
    def make(
        num_blocks: int = 64,
        caching: bool = True,
        max_model_len: int = 200,
        burst: int = 1,
        vocab: int = VOCAB,
        speculative: SpeculativeConfig | None = None,
        **config,
    ) -> Bench:
        config = {"max_num_seqs": 8, "max_num_batched_tokens": 16, **config}
        runner = FakeRunner(num_blocks, BLOCK, burst, vocab=vocab)
        made: list[Bench] = []
        clock = lambda: made[0].now if made else 1.0  # noqa: E731
        recorder = Recorder(clock)
        cache = KvCache(num_blocks, BLOCK, caching)
        scheduler = Scheduler(SchedulerConfig(**config), cache, max_model_len, clock, recorder, speculative)
        made.append(Bench(Engine(runner, scheduler, recorder=recorder), runner, recorder))
        return made[0]

    return make
