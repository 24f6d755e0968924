"""Attention by itself: decode against the bytes of its keys and values, prefill against bf16 (or fp32) products.

The cache of decode goes through as many layers as exceed the last cache twice, so that keys and values come from memory, as
behind a step's weights. A barrier stands between calls, as between a step's ops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.kernels import shapes
from benchmarks.kernels.steps import Measurement
from benchmarks.roofline import KindTime
from forno import _native
from forno.kernels.cpu import ceilings
from forno.program import ops
from forno.program.ceiling import Ceiling
from forno.program.shape import Span, StepShape

BATCHES, CONTEXTS = (1, 8, 32, 64), (160, 512, 2048)
PROMPTS = (512, 2900)
KV_DTYPES = ("bf16", "int8", "float32")
SHARED, OWN = 1280, 64
"""Tokens of a prefix that all sequences of a batch share, and of each one's own."""
ROUNDS = 3
MAX_SPANS = 4096
"""Sequences times layers whose cache is written, a limit on the time that takes."""

Table = list[int]


class Bench:
    """One model's attention op over caches of one type."""

    def __init__(self, model: str, kv: str, isa: str, threads: int) -> None:
        self.model, self.kv, self.isa, self.threads = model, kv, isa, threads
        self.program = shapes.program_for(model, "q8_0", 1, kv)
        self.op = next(op for op in self.program.ops if isinstance(op, ops.Attention))
        self.width = self.op.kv_heads * self.op.head_dim

    def decode(self, batch: int, context: int, seconds: float) -> tuple[float, StepShape]:
        """Seconds per layer of ``batch`` sequences that each attend to ``context`` tokens."""
        layers = self._layers(batch * context, batch)
        cache, tables = self._cache(layers, [context] * batch)
        return self._time(cache, [(context - 1, 1, t) for t in tables], layers, seconds), StepShape.decode(batch, context - 1)

    def prefill(self, tokens: int, seconds: float) -> tuple[float, StepShape]:
        cache, (table,) = self._cache(1, [tokens])
        return self._time(cache, [(0, tokens, table)], 1, seconds), StepShape.prefill(tokens)

    def shared_prefix(self, batch: int, seconds: float, sharing: bool) -> tuple[float, StepShape]:
        """Decode of sequences whose first ``SHARED`` tokens are the same; the shape counts those keys' bytes once."""
        layers = self._layers(SHARED + batch * OWN, batch)
        pages, tail = SHARED // shapes.BLOCK, OWN // shapes.BLOCK
        cache, _ = self._cache(layers, [SHARED + batch * OWN])
        prefix = list(range(pages))
        spans = [(SHARED + OWN - 1, 1, [*prefix, *range(pages + i * tail, pages + (i + 1) * tail)]) for i in range(batch)]
        shape = StepShape((Span(SHARED + OWN - 1, 1), *(Span(OWN - 1, 1),) * (batch - 1)), batch)
        return self._time(cache, spans, layers, seconds, sharing), shape

    def result(self, name: str, rows: int, measured: tuple[float, StepShape], ceiling: Ceiling) -> Measurement:
        seconds, shape = measured
        cost = self.op.cost(self.program, shape)
        return Measurement.of(self.model, self.kv, "attention", rows, KindTime(name, 1, seconds, cost, ceiling.limit(cost)))

    def _layers(self, tokens: int, spans: int) -> int:
        per_layer = tokens * self.program.caches[self.op.cache].bytes_per_token
        return int(max(1, min(-(-shapes.cold_bytes() // per_layer), MAX_SPANS // spans)))

    def _cache(self, layers: int, contexts: Sequence[int]) -> tuple[Any, list[Table]]:
        """A cache with random keys and values of sequences of these lengths in every layer, and their shuffled blocks."""
        rng = np.random.default_rng(0)
        counts = [-(-c // shapes.BLOCK) for c in contexts]
        op, order = self.op, rng.permutation(sum(counts)) if len(counts) > 1 else np.arange(sum(counts))
        cache = _native.ops.PagedKv(op.kv_heads, op.head_dim, op.head_dim, shapes.BLOCK, sum(counts), self.kv, layers)
        tables = [t.tolist() for t in np.split(order, np.cumsum(counts)[:-1])]
        k, v = rng.standard_normal((2, max(contexts), self.width), dtype=np.float32)
        for layer in range(layers):
            for table, context in zip(tables, contexts, strict=True):
                _native.ops.kv_write(self.isa, 1, cache, [(0, context, table)], k[:context], v[:context], layer)
        return cache, tables

    def _time(
        self, cache: Any, spans: list[tuple[int, int, Table]], layers: int, seconds: float, sharing: bool = True
    ) -> float:
        """Seconds per call: the median of ``ROUNDS`` rounds that together take about ``seconds``."""
        op, rows = self.op, sum(tokens for _, tokens, _ in spans)
        q = np.random.default_rng(1).standard_normal((rows, op.heads * op.head_dim), dtype=np.float32)

        def run(repeats: int) -> float:
            call = (self.isa, self.threads, cache, spans, q, op.heads, op.scale, repeats, sharing)
            return float(_native.ops.time_attention(*call))

        # By the wall: the clock of a call starts when its first worker does, which may be after the others are done.
        started = time.perf_counter()
        run(layers)
        once = (time.perf_counter() - started) / layers
        repeats = max(layers, int(seconds / ROUNDS / once))
        return float(np.median([run(repeats) for _ in range(ROUNDS)]))


def measure(
    model: str,
    kv: str,
    isa: str,
    threads: int,
    seconds: float,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
) -> Iterator[Measurement]:
    """Decode, prefill and a shared prefix of ``model`` with a cache of type ``kv``, each about ``seconds`` long."""
    bench, before = Bench(model, kv, isa, threads), ceilings.measure(threads, isa, min(0.05, seconds))
    cases: list[tuple[str, int, Callable[[], tuple[float, StepShape]]]] = []
    for context in contexts:
        for batch in batches:
            cases.append((f"decode {context}", batch, lambda b=batch, c=context: bench.decode(b, c, seconds)))  # type: ignore[misc]
    for tokens in PROMPTS:
        cases.append((f"prefill {tokens}", tokens, lambda t=tokens: bench.prefill(t, seconds)))  # type: ignore[misc]
    if 32 in batches:
        cases.append(("prefix apart", 32, lambda: bench.shared_prefix(32, seconds, False)))
        cases.append(("prefix shared", 32, lambda: bench.shared_prefix(32, seconds, True)))
    measured = [(name, rows, case()) for name, rows, case in cases]
    ceiling = before.mean(ceilings.measure(threads, isa, min(0.05, seconds)))
    for name, rows, result in measured:
        yield bench.result(name, rows, result, ceiling)
