"""Paged blocks against contiguous reservation, in counts: what is reserved, what is used, who runs and who waits."""

from __future__ import annotations

import random

import pytest

from forno.cache import ContiguousCache, KvCache
from forno.config import SchedulerConfig
from forno.engine.engine import Engine
from forno.errors import PromptTooLongError
from forno.request import Request, SamplingParams
from forno.scheduler import Scheduler
from tests.helpers.fake_runner import FakeRunner, some_tokens, unbatched

CONTEXT = 2048
BLOCK = 32
CACHE = 8 * CONTEXT // BLOCK


def chat_requests(count: int, seed: int = 1) -> list[Request]:
    """Lengths like a chat service's: lognormal around 160 prompt and 340 output tokens, as ShareGPT has them (the first
    workload of the PagedAttention paper, arXiv 2309.06180, section 6.1)."""
    rng = random.Random(seed)
    made = []
    for i in range(count):
        prompt = min(1000, max(4, round(rng.lognormvariate(4.6, 1.0))))
        output = min(1000, max(4, round(rng.lognormvariate(5.62, 0.75))))
        made.append(Request(str(i), some_tokens(str(i), prompt), SamplingParams(max_tokens=output, ignore_eos=True)))
    return made


class Idle(FakeRunner):
    """Checks rows, but not each position that they read: here only counts matter."""

    def _check_reads(self, plan) -> None:
        assert all(row.start + row.num_tokens <= len(row.blocks) * self.block_size for row in plan.rows)

    def _write(self, plan) -> None:
        pass


def serve(cache: KvCache, requests: list[Request]) -> tuple[float, float]:
    """Serve all of them; returns the share of reserved slots that held nothing, and the mean number of running requests."""
    config = SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=512, max_num_queued_reqs=0, mixed_step_stretch=0)
    scheduler = Scheduler(config, cache, CONTEXT, clock=lambda: 1.0)
    engine = Engine(Idle(cache.num_blocks, cache.block_size), scheduler)
    for request in requests:
        engine.add_request(request)
    steps = ran = 0
    while engine.has_work:
        engine.step()
        steps += 1
        ran += len(scheduler.running)
        if steps % 50 == 0:
            engine.check_integrity()
    engine.check_integrity()
    assert cache.num_free == cache.num_blocks
    return 1 - cache.use.used / cache.use.reserved, ran / steps


def test_the_lengths_are_as_said() -> None:
    requests = chat_requests(4000)
    assert sum(len(r.prompt) for r in requests) / len(requests) == pytest.approx(160, rel=0.05)
    assert sum(r.sampling.max_tokens for r in requests) / len(requests) == pytest.approx(340, rel=0.05)


def test_paging_wastes_a_few_percent_where_contiguous_reservation_wastes_most() -> None:
    requests = chat_requests(80)
    paged, paged_running = serve(KvCache(CACHE, BLOCK), requests)
    small, _ = serve(KvCache(2 * CACHE, BLOCK // 2), requests)
    contiguous, contiguous_running = serve(ContiguousCache(CACHE, BLOCK, CONTEXT), requests)
    as_asked, _ = serve(ContiguousCache(CACHE, BLOCK, CONTEXT, as_asked=True), requests)
    assert small < paged < 0.04
    assert contiguous > 0.6
    assert paged < as_asked < contiguous, "even one who knows the lengths reserves the end from the beginning"
    assert contiguous_running <= 8 < 2 * contiguous_running < paged_running, "the same memory serves fewer at a time"


def test_a_request_waits_for_a_run_of_neighbours() -> None:
    """Five blocks are free, in two pieces: who needs four waits for a neighbour to finish, and is then served."""
    runner = FakeRunner(8, 4)
    cache = ContiguousCache(8, 4, 32, as_asked=True)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64), cache, 32, lambda: 1.0)
    engine = Engine(runner, scheduler)
    requests = [
        Request(id, some_tokens(id, prompt), SamplingParams(max_tokens=output, ignore_eos=True))
        for id, prompt, output in (("a", 8, 1), ("b", 4, 8), ("c", 8, 1), ("d", 12, 3))
    ]
    tokens: dict[str, tuple[int, ...]] = {request.id: () for request in requests}
    for request in requests:
        engine.add_request(request)
    waited = 0
    while engine.has_work:
        for output in engine.step():
            tokens[output.id] += output.token_ids
        engine.check_integrity()
        waiting = scheduler.waiting.first()
        if waiting is not None:
            assert waiting.request.id == "d"
            waited += cache.num_free >= cache.blocks_for(14)
    assert waited, "enough blocks were free, though not side by side"
    assert tokens == {request.id: unbatched(request)[0] for request in requests}


def test_what_no_run_can_hold_is_refused() -> None:
    scheduler = Scheduler(SchedulerConfig(), ContiguousCache(8, 4, 64), 64, lambda: 1.0)
    with pytest.raises(PromptTooLongError, match="more than the KV cache's 32 tokens"):
        scheduler.check(Request("a", some_tokens("a", 30), SamplingParams(max_tokens=10)))
