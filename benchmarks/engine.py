"""forno's own prefill and decode, without HTTP or scheduler, next to what the machine allows.

    python -m benchmarks.engine [--model M] [--batches 1,8,32,64] [--repeats 5]

Prints the ceilings first (``forno doctor``'s peaks), then what was measured next to two rooflines that the program's own
costs give with them, a table of each step's ops (time, limit, share), and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from benchmarks.measure import Contention, Sample, machine, progress, table
from benchmarks.roofline import by_kind
from forno.config import DEFAULT_MODEL, EngineConfig
from forno.engine.build import engine_config
from forno.kernels.cpu import ceilings
from forno.loader.open import open_checkpoint
from forno.loader.sources import resolve
from forno.program.ceiling import DEFINITION, Ceiling
from forno.program.ops import Op
from forno.program.program import Program
from forno.program.shape import StepShape
from forno.request import Request, Row, SamplingParams, StepPlan
from forno.runner.cpu import CpuRunner

PREFILL, GENERATE = 512, 128
"""Tokens of the prompt, and of the answer generated after one token: llama-bench's ``pp512`` and ``tg128``."""
CONTEXT, STEPS = 144, 32
"""A decode step is timed at contexts from ``CONTEXT`` on, ``STEPS`` times: 160 tokens in the middle."""
MARGIN = 64
TARGETS = {"decode-32": 0.60}
"""Share of the roofline by op that a case is to reach, as issue 3 of the project sets it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement of a case."""

    seconds: float
    """Of all its tokens."""
    ops: list[tuple[Op, float]] = field(default_factory=list)
    """Each op's seconds in one of its steps; empty where they are not asked for."""


class Bench:
    """Steps on one runner, with random tokens and blocks of their own."""

    def __init__(self, runner: CpuRunner) -> None:
        self.runner = runner
        self.rng = np.random.default_rng(0)

    def prefill(self) -> Measured:
        """One step over a prompt of ``PREFILL`` tokens, and another for its ops."""
        plain, timed = (self._prompt(timed) for timed in (False, True))
        return Measured(plain.seconds, timed.ops)

    def generate(self) -> Measured:
        """``GENERATE`` decode steps after a prompt of one token."""
        slot, blocks = self._admit(0, 1)
        try:
            rows = ((Row(slot, position, 1, blocks, True),) for position in range(GENERATE))
            return Measured(sum(self._timed(row) for row in rows))
        finally:
            self.runner.release(slot)

    def decode(self, batch: int) -> Measured:
        """The median of ``STEPS`` steps of ``batch`` sequences at contexts from ``CONTEXT`` on, and another step's ops."""
        held = [self._admit(i, CONTEXT) for i in range(batch)]
        try:
            for slot, blocks in held:
                self._timed((Row(slot, 0, CONTEXT, blocks, True),))
            steps = [tuple(Row(slot, CONTEXT + i, 1, blocks, True) for slot, blocks in held) for i in range(STEPS + 1)]
            return Measured(statistics.median(self._timed(rows) for rows in steps[:-1]), self._ops(steps[-1]))
        finally:
            for slot, _ in held:
                self.runner.release(slot)

    def _prompt(self, timed: bool) -> Measured:
        slot, blocks = self._admit(0, PREFILL)
        rows = (Row(slot, 0, PREFILL, blocks, True),)
        try:
            return Measured(0.0, self._ops(rows)) if timed else Measured(self._timed(rows))
        finally:
            self.runner.release(slot)

    def _ops(self, rows: tuple[Row, ...]) -> list[tuple[Op, float]]:
        with self.runner.timed_ops():
            self._timed(rows)
        return self.runner.op_times()

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
    measure: Callable[[Bench], Measured]

    def coarse(self, limits: Ceiling, program: Program) -> float:
        """Tokens per second that the roofline of whole steps allows."""
        return self.tokens / (self.steps * limits.step(program, self.shape))

    def by_op(self, limits: Ceiling, program: Program) -> float:
        """Tokens per second that the ops' rooflines allow, one after the other."""
        return self.tokens / (self.steps * limits.step_by_op(program, self.shape))


def cases(batches: Sequence[int]) -> Iterator[Case]:
    yield Case("prefill-512", PREFILL, StepShape.prefill(PREFILL), 1, Bench.prefill)
    yield Case("generate-128", GENERATE, StepShape.decode(1, GENERATE // 2), GENERATE, Bench.generate)
    for batch in batches:
        middle = StepShape.decode(batch, CONTEXT + STEPS // 2)
        yield Case(f"decode-{batch}", batch, middle, 1, lambda bench, b=batch: bench.decode(b))  # type: ignore[misc]


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
    limits = ceilings.measure(runner.threads, runner.isa)
    progress(f"ceilings on {runner.threads} threads ({runner.isa}): {limits}")
    bench.prefill()
    measured: dict[str, list[Measured]] = {case.name: [] for case in chosen}
    for number in range(options.repeats):
        progress(f"round {number + 1} of {options.repeats}")
        for case in chosen:
            with contention.watched():
                measured[case.name].append(case.measure(bench))
        limits |= ceilings.measure(runner.threads, runner.isa)
    program, seconds = runner.program, {name: Sample(tuple(m.seconds for m in found)) for name, found in measured.items()}
    return {
        "benchmark": "engine",
        "model": options.model,
        "isa": runner.isa,
        "kv_cache_dtype": options.kv_cache_dtype,
        "machine": machine() | {"others": contention.mean},
        "limits": {name: float(f"{rate:.4g}") for name, rate in asdict(limits).items()},
        "ceiling": {case.name: round(case.coarse(limits, program), 1) for case in chosen},
        "by_op": {case.name: round(case.by_op(limits, program), 1) for case in chosen},
        "tok_s": {case.name: round(case.tokens / seconds[case.name].median, 1) for case in chosen},
        "spread": {name: round(sample.spread, 3) for name, sample in seconds.items()},
        "ops": {case.name: op_table(program, case.shape, measured[case.name], limits) for case in chosen},
    }


def op_table(program: Program, shape: StepShape, found: Sequence[Measured], limits: Ceiling) -> dict[str, Any]:
    """Kind of op to its number, microseconds in all (the median step) and its limit, longest first; empty without op times."""
    samples = [m.ops for m in found if m.ops]
    if not samples:
        return {}
    medians = [(op, statistics.median(s[i][1] for s in samples)) for i, (op, _) in enumerate(samples[0])]
    kinds = sorted(by_kind(program, shape, medians, limits), key=lambda k: -k.seconds)
    return {k.kind: {"ops": k.count, "us": round(k.seconds * 1e6, 1), "limit_us": round(k.limit * 1e6, 1)} for k in kinds}


def report(result: dict[str, Any]) -> str:
    """The measurements next to both rooflines, then what each case's step spent its time on."""
    rows = []
    for name, rate in result["tok_s"].items():
        coarse, by_op = result["ceiling"][name], result["by_op"][name]
        shares = (rate / coarse, rate / by_op, TARGETS.get(name), result["spread"][name])
        rates = (f"{x:.0f}" for x in (rate, coarse, by_op))
        rows.append([name, *rates, *("" if share is None else f"{share:.0%}" for share in shares)])
    header = ["tok/s", "measured", "coarse", "by op", "of coarse", "of by op", "target", "spread"]
    details = [f"\n{op_report(name, kinds)}" for name, kinds in result["ops"].items() if kinds]
    return "\n".join([table(header, rows), DEFINITION, *details])


def op_report(name: str, kinds: dict[str, Any]) -> str:
    """One step's ops: the time of each kind, its share of the step, its limit and how close it comes to that."""
    step = sum(k["us"] for k in kinds.values())
    rows = [
        [
            kind,
            str(k["ops"]),
            f"{k['us']:.1f}",
            f"{k['us'] / step:.0%}",
            f"{k['limit_us']:.1f}",
            f"{k['limit_us'] / k['us']:.0%}",
        ]
        for kind, k in kinds.items()
        if k["us"]
    ]
    limit = sum(k["limit_us"] for k in kinds.values())
    rows.append(
        ["all", str(sum(k["ops"] for k in kinds.values())), f"{step:.1f}", "100%", f"{limit:.1f}", f"{limit / step:.0%}"]
    )
    return table([name, "ops", "us", "share", "limit us", "reached"], rows)


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
