"""forno's own prefill and decode, without HTTP or scheduler, next to what the machine allows.

    python -m benchmarks.engine [--model M] [--batches 1,8,32,64] [--repeats 5]

Prints the ceilings first (``forno doctor``'s peaks, and the roofline that the program's cost gives with them), then what
was measured and the share of the ceiling that it reaches, and ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np

from benchmarks.measure import Contention, machine, progress, table
from forno.config import DEFAULT_MODEL, EngineConfig
from forno.engine.build import engine_config
from forno.loader.open import open_checkpoint
from forno.loader.sources import resolve
from forno.program.program import Program
from forno.program.shape import StepShape
from forno.request import Request, Row, SamplingParams, StepPlan
from forno.runner.cpu import CpuRunner
from forno.tools import doctor

PREFILL, GENERATE = 512, 128
"""Tokens of the prompt, and of the answer generated after one token: llama-bench's ``pp512`` and ``tg128``."""
CONTEXT, STEPS = 144, 32
"""A decode step is timed at contexts from ``CONTEXT`` on, ``STEPS`` times: 160 tokens in the middle."""
MARGIN = 64


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the machine could do at most: operations per second by unit, bytes per second from DRAM."""

    int8: float
    bf16: float
    fp32: float
    dram: float

    @classmethod
    def measure(cls, runner: CpuRunner) -> Ceiling:
        found = doctor.measure(runner.threads, runner.isa, doctor.SECONDS)
        rates = {name: found[name] or found["fp32"] or 0.0 for name in ("int8", "bf16", "fp32")}
        return cls(**rates, dram=found["dram_read"] or 0.0)

    def __or__(self, other: Ceiling) -> Ceiling:
        """The better of two measurements, rate by rate: a ceiling is what was reached once."""
        return Ceiling(*(max(mine, its) for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def seconds(self, program: Program, shape: StepShape) -> float:
        """The roofline: the arithmetic at its peak, or weights and KV once from DRAM, whichever takes longer.

        Activations stay in the caches. A model whose weights fit the L3 cache may exceed it.
        """
        cost = program.cost(shape)
        arithmetic = cost.int8 / self.int8 + cost.bf16 / self.bf16 + cost.fp32 / self.fp32
        return max(arithmetic, (cost.weight_bytes + cost.kv_bytes) / self.dram)

    def __str__(self) -> str:
        return (
            f"int8 {self.int8 / 1e12:.2f} Tops/s, bf16 {self.bf16 / 1e12:.2f} TFLOP/s, fp32 {self.fp32 / 1e12:.2f} TFLOP/s, "
            f"DRAM {self.dram / 1e9:.1f} GB/s"
        )


class Bench:
    """Steps on one runner, with random tokens and blocks of their own."""

    def __init__(self, runner: CpuRunner) -> None:
        self.runner = runner
        self.rng = np.random.default_rng(0)

    def prefill(self) -> float:
        """Seconds of one step over a prompt of ``PREFILL`` tokens."""
        slot, blocks = self._admit(0, PREFILL)
        try:
            return self._timed((Row(slot, 0, PREFILL, blocks, True),))
        finally:
            self.runner.release(slot)

    def generate(self) -> float:
        """Seconds of ``GENERATE`` decode steps after a prompt of one token."""
        slot, blocks = self._admit(0, 1)
        try:
            return sum(self._timed((Row(slot, position, 1, blocks, True),)) for position in range(GENERATE))
        finally:
            self.runner.release(slot)

    def decode(self, batch: int) -> list[float]:
        """Seconds of ``STEPS`` steps of ``batch`` sequences at contexts from ``CONTEXT`` on."""
        held = [self._admit(i, CONTEXT) for i in range(batch)]
        try:
            for slot, blocks in held:
                self._timed((Row(slot, 0, CONTEXT, blocks, True),))
            positions = range(CONTEXT, CONTEXT + STEPS)
            return [self._timed(tuple(Row(slot, p, 1, blocks, True) for slot, blocks in held)) for p in positions]
        finally:
            for slot, _ in held:
                self.runner.release(slot)

    def _admit(self, place: int, tokens: int) -> tuple[int, tuple[int, ...]]:
        """A request of random tokens, and the blocks that the ``place``-th request of a batch uses."""
        prompt = self.rng.integers(0, self.runner.program.vocab_size, tokens)
        sampling = SamplingParams(max_tokens=GENERATE + MARGIN, temperature=0, ignore_eos=True)
        slot = self.runner.admit(Request("benchmark", tuple(prompt.tolist()), sampling))
        each = blocks_for(tokens, self.runner.block_size)
        return slot, tuple(range(place * each, (place + 1) * each))

    def _timed(self, rows: tuple[Row, ...]) -> float:
        plan = StepPlan(rows)
        started = time.perf_counter()
        self.runner.run(plan)
        return time.perf_counter() - started


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold a prompt and all that is generated after it."""
    return -(-(tokens + GENERATE + MARGIN) // block_size)


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the report."""

    name: str
    tokens: int
    """Tokens that one measurement computes or generates."""
    shape: StepShape
    steps: int
    """Steps of ``shape`` that a measurement stands for."""
    measure: Callable[[Bench], float]
    """Seconds of one measurement."""

    def ceiling(self, limits: Ceiling, program: Program) -> float:
        """Tokens per second that the roofline allows."""
        return self.tokens / (self.steps * limits.seconds(program, self.shape))


def cases(batches: Sequence[int]) -> Iterator[Case]:
    yield Case("prefill-512", PREFILL, StepShape.prefill(PREFILL), 1, Bench.prefill)
    yield Case("generate-128", GENERATE, StepShape.decode(1, GENERATE // 2), GENERATE, Bench.generate)
    for batch in batches:
        middle = StepShape.decode(batch, CONTEXT + STEPS // 2)
        yield Case(f"decode-{batch}", batch, middle, 1, lambda bench, b=batch: statistics.median(bench.decode(b)))  # type: ignore[misc]


def config_for(batches: Sequence[int], **options: Any) -> EngineConfig:
    """Room for the largest batch, and steps of up to ``PREFILL`` rows."""
    block = EngineConfig().cache.block_size
    needed = max(blocks_for(PREFILL, block), max(batches, default=1) * blocks_for(CONTEXT, block))
    return engine_config(num_blocks_override=needed, max_num_batched_tokens=PREFILL, **options)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every case ``options.repeats`` times, round after round."""
    batches = [int(batch) for batch in options.batches.split(",") if batch]
    config = config_for(batches, isa=options.isa, threads=options.threads, kv_cache_dtype=options.kv_cache_dtype)
    runner = CpuRunner.from_checkpoint(open_checkpoint(resolve(options.model)), config)
    bench, chosen, contention = Bench(runner), list(cases(batches)), Contention()
    limits = Ceiling.measure(runner)
    progress(f"ceilings on {runner.threads} threads ({runner.isa}): {limits}")
    bench.prefill()
    seconds: dict[str, list[float]] = {case.name: [] for case in chosen}
    for number in range(options.repeats):
        progress(f"round {number + 1} of {options.repeats}")
        for case in chosen:
            with contention.watched():
                seconds[case.name].append(case.measure(bench))
        limits |= Ceiling.measure(runner)
    return {
        "benchmark": "engine",
        "model": options.model,
        "isa": runner.isa,
        "kv_cache_dtype": options.kv_cache_dtype,
        "machine": machine() | {"others": contention.mean},
        "limits": {name: float(f"{rate:.4g}") for name, rate in asdict(limits).items()},
        "ceiling": {case.name: round(case.ceiling(limits, runner.program), 1) for case in chosen},
        "tok_s": {case.name: round(case.tokens / statistics.median(seconds[case.name]), 1) for case in chosen},
        "spread": {name: round((max(s) - min(s)) / statistics.median(s), 3) for name, s in seconds.items()},
    }


def report(result: dict[str, Any]) -> str:
    """The ceilings, the measurements, and their share."""
    rows = [
        [
            name,
            f"{result['ceiling'][name]:.0f}",
            f"{rate:.0f}",
            f"{rate / result['ceiling'][name]:.0%}",
            f"{result['spread'][name]:.0%}",
        ]
        for name, rate in result["tok_s"].items()
    ]
    return table(["tok/s", "ceiling", "measured", "reached", "spread"], rows)


def add_options(parser: argparse.ArgumentParser, *, batches: str, repeats: int) -> None:
    """What ``run`` reads besides the model."""
    parser.add_argument("--batches", default=batches, help="numbers of decoding sequences, comma-separated")
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--kv-cache-dtype", default="auto")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="forno's prefill and decode next to what the machine allows.")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    add_options(parser, batches="1,8,32,64", repeats=5)
    result = run(parser.parse_args(arguments))
    print(report(result))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
