"""Numbers about the engine: totals since its start, and the timings of each finished request until someone drains them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from forno.request import FinishReason, RequestOutput, RequestTimes, StepPlan, StepResult
from forno.scheduler import Scheduler, Sequence

T = TypeVar("T")

MAX_UNDRAINED = 65536
"""Finished requests remembered if nobody drains them; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """One moment. Counters only grow; gauges are marked."""

    running: int = 0
    """Gauge: requests that hold KV blocks."""
    waiting: int = 0
    """Gauge: requests that hold none."""
    waiting_for_prefix: int = 0
    """Gauge: of the waiting, those that wait for a block another request computes now."""
    kv_usage: float = 0.0
    """Gauge, 0 to 1: share of KV blocks held by running requests."""
    kv_blocks: int = 0
    block_size: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    """Time in ``Runner.run``."""
    computed_tokens: int = 0
    """Tokens that steps computed, recomputation after preemption included."""
    prompt_tokens: int = 0
    """Prompt tokens of requests that were first scheduled."""
    cached_tokens: int = 0
    """Of those, tokens found in the prefix cache."""
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    """Tokens looked up in the prefix cache."""
    prefix_cache_hits: int = 0
    """Tokens found there."""
    preemptions: int = 0
    evictions: int = 0
    """Cached blocks that were overwritten."""
    drafts: int = 0
    """Times that guesses of a request's next tokens were verified."""
    draft_tokens: int = 0
    """Tokens guessed."""
    accepted_tokens: tuple[int, ...] = ()
    """Of those, tokens that were right, by their position among the guesses of their step."""
    queue_seconds: float = 0.0
    """Time that requests waited before they were first scheduled, summed."""
    finished: Mapping[str, int] = field(default_factory=dict)
    """Requests by ``FinishReason`` value."""


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """What one request took, for latency histograms."""

    id: str
    reason: FinishReason
    times: RequestTimes
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    max_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    """Of the draft tokens, those that were right."""
    slo_class: str = ""


@dataclass(slots=True)
class StepSample:
    """One step's size and duration."""

    num_tokens: int
    num_requests: int
    seconds: float


class StatsCollector:
    """Written by the engine's thread. ``snapshot`` and ``drain_*`` may be called from another: they only read numbers
    and pop from deques, which Python makes atomic."""

    def __init__(self) -> None:
        self.steps = 0
        self.step_seconds = 0.0
        self.computed_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys((reason.value for reason in FinishReason), 0)
        self._finished: deque[FinishedRequest] = deque(maxlen=MAX_UNDRAINED)
        self._steps: deque[StepSample] = deque(maxlen=MAX_UNDRAINED)

    def step(self, plan: StepPlan, result: StepResult, outputs: Iterable[RequestOutput]) -> None:
        self.generation_tokens += sum([len(output.token_ids) for output in outputs])
        if not plan.rows:
            return
        tokens = plan.num_tokens
        self.steps += 1
        self.step_seconds += result.seconds
        self.computed_tokens += tokens
        self._steps.append(StepSample(tokens, len(plan.rows), result.seconds))

    def finish(self, sequence: Sequence, reason: FinishReason, times: RequestTimes) -> None:
        self.finished[reason.value] += 1
        self._finished.append(
            FinishedRequest(
                sequence.request.id,
                reason,
                times,
                sequence.num_prompt,
                sequence.num_cached,
                sequence.num_generated,
                sequence.num_preemptions,
                sequence.request.sampling.max_tokens,
                sequence.num_drafted,
                sequence.num_accepted,
                sequence.request.slo_class,
            )
        )

    def snapshot(self, scheduler: Scheduler) -> EngineStats:
        cache = scheduler.cache
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            waiting_for_prefix=scheduler.waiting.num_parked,
            kv_usage=cache.usage,
            kv_blocks=cache.num_blocks,
            block_size=cache.block_size,
            steps=self.steps,
            step_seconds=self.step_seconds,
            computed_tokens=self.computed_tokens,
            prompt_tokens=scheduler.counters.prompt_tokens,
            cached_tokens=scheduler.counters.cached_tokens,
            generation_tokens=self.generation_tokens,
            prefix_cache_queries=cache.queried_tokens,
            prefix_cache_hits=cache.hit_tokens,
            preemptions=scheduler.counters.preemptions,
            evictions=cache.pool.num_evictions,
            drafts=scheduler.counters.drafts,
            draft_tokens=scheduler.counters.draft_tokens,
            accepted_tokens=tuple(scheduler.counters.accepted_tokens),
            queue_seconds=scheduler.counters.queue_seconds,
            finished=MappingProxyType(dict(self.finished)),
        )

    def drain_finished(self) -> list[FinishedRequest]:
        """Requests that finished since the last call, oldest first."""
        return _drain(self._finished)

    def drain_steps(self) -> list[StepSample]:
        """Steps since the last call, oldest first."""
        return _drain(self._steps)


def _drain(items: deque[T]) -> list[T]:
    drained = []
    while items:
        drained.append(items.popleft())
    return drained
