"""What the server reports to Prometheus about one engine, under vLLM's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING

from forno.engine.async_engine import AsyncEngine
from forno.engine.stats import EngineStats, FinishedRequest
from forno.server import roofline_metrics
from forno.server.cache_metrics import cache_families
from forno.server.goodput import Goodput
from forno.server.histogram import ITL, REQUEST, TTFT, Histogram, token_buckets

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from forno.observe.attribution import Attribution
    from forno.server.metrics import Exposition, Family

STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
LATENCIES = {
    "time_to_first_token_seconds": ("From arrival to the first token.", TTFT),
    "request_time_per_output_token_seconds": ("Mean time per token after the first.", ITL),
    "e2e_request_latency_seconds": ("From arrival to the last token.", REQUEST),
    "request_queue_time_seconds": ("From arrival to the first step.", REQUEST),
    "request_inference_time_seconds": ("From the first step to the last token.", REQUEST),
    "request_prefill_time_seconds": ("From the first step to the first token.", REQUEST),
    "request_decode_time_seconds": ("From the first token to the last.", REQUEST),
}
SIZES = {
    "request_prompt_tokens": "Prompt tokens per request.",
    "request_generation_tokens": "Generated tokens per request.",
    "request_params_max_tokens": "max_tokens asked for.",
    "request_prefill_kv_computed_tokens": "Prompt tokens computed, those found in the cache aside.",
}


class EngineMetrics:
    """Reads an engine's counters when scraped, and folds the samples it has kept since the last time."""

    def __init__(
        self,
        engine: AsyncEngine,
        model: str,
        prefix: str,
        goodput: Goodput | None = None,
        phases: Iterable[tuple[str, float]] = (),
        attribution: Attribution | None = None,
    ) -> None:
        """``phases``: what the start spent its time on."""
        self.engine = engine
        self.model, self.prefix = model, prefix
        self.goodput = Goodput() if goodput is None else goodput
        self.startup = dict(phases)
        self.attribution = attribution
        self.startup_total: float | None = None
        """Seconds until requests were taken; whoever starts the server says so."""
        self.spans = {"exported": 0, "dropped": 0, "failed": 0}
        """Requests whose spans were sent or not; ``SpanSender`` counts."""
        sizes = token_buckets(engine.max_model_len)
        self.latencies = {name: Histogram(bounds) for name, (_, bounds) in LATENCIES.items()}
        self.sizes = {name: Histogram(sizes) for name in SIZES}
        self.step_tokens = Histogram(STEP_TOKENS)
        self.step_seconds = Histogram(ITL)
        self.preemptions = Histogram((0, 1, 2, 5, 10, 20))
        self.inter_token = Histogram(ITL)
        self.rejected: dict[str, float] = {}

    def token(self, last: float) -> float:
        """Record that a stream's next token arrived now; ``last`` is what the previous call returned, 0 at first."""
        now = perf_counter()
        if last:
            self.inter_token.observe(now - last)
        return now

    def reject(self, reason: str) -> None:
        """Count a request that was refused before it reached the engine's queue."""
        self.rejected[reason] = self.rejected.get(reason, 0.0) + 1

    def fold(self) -> None:
        """Take in what the engine has recorded; called on each scrape and now and then in between."""
        for request in self.engine.drain_finished():
            self._observe(request)
        for step in self.engine.drain_steps():
            self.step_tokens.observe(step.num_tokens)
            self.step_seconds.observe(step.seconds)

    def text(self) -> bytes:
        """The exposition format."""
        self.fold()
        return self._exposition.text()

    @cached_property
    def _exposition(self) -> Exposition:
        from forno.server.metrics import Exposition, Family  # they import prometheus_client, which only a scrape needs

        make = Family(self.prefix, {"model_name": self.model, "engine": "0"})
        return Exposition(lambda: self._families(make))

    def _observe(self, request: FinishedRequest) -> None:
        self.goodput.observe(request)
        times, tokens = request.times, request.num_generated_tokens
        values = {"e2e_request_latency_seconds": times.finished - times.arrival}
        if times.scheduled:
            values["request_queue_time_seconds"] = times.scheduled - times.arrival
            values["request_inference_time_seconds"] = times.finished - times.scheduled
        if times.first_token:
            values["time_to_first_token_seconds"] = times.first_token - times.arrival
            values["request_prefill_time_seconds"] = times.first_token - times.scheduled
            values["request_decode_time_seconds"] = times.finished - times.first_token
        if times.first_token and tokens > 1:
            values["request_time_per_output_token_seconds"] = (times.finished - times.first_token) / (tokens - 1)
        for name, value in values.items():
            self.latencies[name].observe(max(value, 0.0))
        self.sizes["request_prompt_tokens"].observe(request.num_prompt_tokens)
        self.sizes["request_generation_tokens"].observe(tokens)
        self.sizes["request_params_max_tokens"].observe(request.max_tokens)
        self.sizes["request_prefill_kv_computed_tokens"].observe(request.num_prompt_tokens - request.num_cached_tokens)
        self.preemptions.observe(request.num_preemptions)

    def _families(self, make: Family) -> Iterator[Metric]:
        stats = self.engine.stats()
        yield from self._gauges(make, stats)
        yield from self._counters(make, stats)
        yield from cache_families(make, self.engine.cache_report())
        for name, (text, _) in LATENCIES.items():
            yield make.histogram(name, text, self.latencies[name])
        yield make.histogram("inter_token_latency_seconds", "Time between tokens of one stream.", self.inter_token)
        for name, text in SIZES.items():
            yield make.histogram(name, text, self.sizes[name])
        yield make.histogram("request_num_preemptions", "Preemptions per request.", self.preemptions)
        yield make.histogram("iteration_tokens_total", "Tokens computed per step.", self.step_tokens)
        yield make.histogram("step_seconds", "Wall time of a step.", self.step_seconds)
        yield from self.goodput.families(make)
        yield make.counters("outcome", "otlp_requests", "Requests whose OpenTelemetry spans were sent or not.", self.spans)
        if self.attribution is not None:
            yield from roofline_metrics.families(make, self.attribution)
        text = "Time of the start's phases; some run at the same time."
        yield make.gauges("phase", "startup_seconds", text, self.startup)
        if self.startup_total is not None:
            yield make.gauge(
                "startup_total_seconds", "From the start of the process's work to accepting requests.", self.startup_total
            )

    def _gauges(self, make: Family, stats: EngineStats) -> Iterator[Metric]:
        yield make.gauge("num_requests_running", "Requests that hold KV blocks.", stats.running)
        yield make.gauge("num_requests_waiting", "Requests that wait for their first step or to be resumed.", stats.waiting)
        reasons = {"capacity": stats.waiting - stats.waiting_for_prefix, "deferred": stats.waiting_for_prefix}
        text = "Waiting requests: for capacity, or for a prefix that another request computes now."
        yield make.gauges("reason", "num_requests_waiting_by_reason", text, reasons)
        yield make.gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", stats.kv_usage)
        blocks = {str(stats.block_size): float(stats.kv_blocks)}
        yield make.gauges("block_size", "cache_config_info", "KV blocks, by their size.", blocks)
        yield make.gauge("engine_healthy", "1 while the engine computes.", float(self.engine.healthy))

    def _counters(self, make: Family, stats: EngineStats) -> Iterator[Metric]:
        yield make.counter("prefix_cache_queries", "Tokens looked up in the prefix cache.", stats.prefix_cache_queries)
        yield make.counter("prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_cache_hits)
        yield make.counter("prefix_cache_evictions", "Cached blocks that were overwritten.", stats.evictions)
        drafts, tokens, accepted = stats.drafts, stats.draft_tokens, stats.accepted_tokens
        yield make.counter("spec_decode_num_drafts", "Times that guessed tokens of a request were verified.", drafts)
        yield make.counter("spec_decode_num_draft_tokens", "Tokens guessed.", tokens)
        yield make.counter("spec_decode_num_accepted_tokens", "Guessed tokens that were right.", sum(accepted))
        by_position = {str(i): float(count) for i, count in enumerate(accepted)}
        text = "Guessed tokens that were right, by their position in the guess."
        yield make.counters("position", "spec_decode_num_accepted_tokens_per_pos", text, by_position)
        yield make.counter("num_preemptions", "Requests preempted for want of KV blocks.", stats.preemptions)
        yield make.counter("prompt_tokens", "Prompt tokens of scheduled requests.", stats.prompt_tokens)
        yield make.counter("prompt_tokens_cached", "Of those, tokens found in the cache.", stats.cached_tokens)
        yield make.counter("generation_tokens", "Tokens generated.", stats.generation_tokens)
        finished = {k: float(v) for k, v in stats.finished.items()}
        yield make.counters("finished_reason", "request_success", "Finished requests.", finished)
        yield make.counters("reason", "admission_rejections", "Refused requests.", self.rejected)
