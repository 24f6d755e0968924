"""Every op but attention, timed within real steps: a few layers with random weights, one format at a time.

So an op finds what it finds in serving: weights in memory rather than in a cache, the op before it still in L2, its own
barrier, all threads. Knows no model file.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.kernels import shapes
from benchmarks.measure import progress
from benchmarks.roofline import KindTime, by_kind
from forno.kernels.cpu import ceilings
from forno.kernels.cpu.buffers import legalize
from forno.program.ops import Op
from forno.program.program import Program
from forno.program.shape import Span, StepShape
from forno.request import Request, Row, SamplingParams, StepPlan

LINEARS = ("qkv", "o", "gate|up", "down", "head")
KERNELS = {
    "linear": LINEARS,
    "embed": ("embed",),
    "norm": ("rms_norm",),
    "rope_kv": ("qkv_prepare", "rope", "kv_write"),
    "silu": ("silu_mul",),
    "sample": ("sample",),
    "others": ("quantize", "add", "gather_rows"),
}
"""Kinds of op by the name that ``--kernels`` knows them by."""
UNFUSED = ("rope", "kv_write", "silu_mul", "sample", "quantize", "add")
"""Kinds that only a program without fusion has."""
LARGEST_BATCH = 128
"""Up to here every row is a sequence that decodes; more rows are one prompt, whose head has no row."""
START, REPEATS, SLOWEST = 16, 12, 3.0
"""Tokens before a decoded one; steps at most, and seconds that one may take, of each number of rows."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One kind of op at one number of rows, on average over the layers."""

    model: str
    codec: str
    kernel: str
    kind: str
    rows: int
    us: float
    limit_us: float
    rate: float
    """Work per second."""
    unit: str
    """Of the rate: ``B/s`` or ``op/s``."""

    @property
    def fraction(self) -> float:
        return self.limit_us / self.us

    @classmethod
    def of(cls, model: str, codec: str, kernel: str, rows: int, k: KindTime) -> Measurement:
        return cls(model, codec, kernel, k.kind, rows, k.seconds / k.count * 1e6, k.limit / k.count * 1e6, *k.rate)


def kernel_of(name: str) -> str:
    """The kernel that a kind of op belongs to; empty for attention, which is measured by itself."""
    return next((kernel for kernel, kinds in KERNELS.items() if name in kinds), "")


def measure(model: str, codec: str, rows: Sequence[int], isa: str, threads: int, seconds: float) -> Iterator[Measurement]:
    """The fused program's ops of which every matrix is held as ``codec``, ``seconds`` long at each number of rows.

    Ceilings are measured before and after, and their mean counts. Rows at which a step would be too slow are left out.
    """
    program = shapes.program_for(model, codec, shapes.layers_for(model, codec))
    yield from _measured(model, codec, program, rows, isa, threads, seconds)


def measure_unfused(model: str, rows: Sequence[int], isa: str, threads: int, seconds: float) -> Iterator[Measurement]:
    """The ops that fusion removes, in a program with all passes off."""
    from forno.program.passes import default_passes

    program = shapes.program_for(model, "q8_0", 8, disable=default_passes())
    for m in _measured(model, "-", program, rows, isa, threads, seconds):
        if m.kind in UNFUSED:
            yield m


def _measured(
    model: str, codec: str, program: Program, rows: Sequence[int], isa: str, threads: int, seconds: float
) -> Iterator[Measurement]:
    before = ceilings.measure(threads, isa, min(0.05, seconds))
    bench = StepBench(program, isa, threads, max(rows))
    times: dict[int, list[tuple[Op, float]]] = {}
    for count in sorted(rows):
        if times and bench.last * count / max(times) > SLOWEST:
            progress(f"{model} {codec}: steps of {count} rows and more left out, too slow with {isa}")
            break
        times[count] = bench.op_times(count, seconds)
    ceiling = before.mean(ceilings.measure(threads, isa, min(0.05, seconds)))
    for count, ops in times.items():
        chosen = [(op, t) for op, t in ops if _holds(program, op, codec)]
        for k in by_kind(program, shape_of(count), chosen, ceiling):
            if kernel := kernel_of(k.kind):
                yield Measurement.of(model, codec, kernel, count, k)


def _holds(program: Program, op: Op, codec: str) -> bool:
    """Whether all matrices of ``op`` are in ``codec`` (a fallback is another codec's measurement), and it ran."""
    formats = {program.weights[n].format for n in op.weight_names if len(program.weights[n].shape) > 1}
    return formats <= {codec} or codec == "-"


def shape_of(rows: int) -> StepShape:
    if rows <= LARGEST_BATCH:
        return StepShape.decode(rows, START)
    return StepShape((Span(0, rows),), 0)


class StepBench:
    """Steps on one program with random weights."""

    def __init__(self, program: Program, isa: str, threads: int, max_rows: int) -> None:
        blocks = max(min(max_rows, LARGEST_BATCH), -(-max_rows // shapes.BLOCK))
        self.runner = shapes.random_runner(program, isa, threads, max_rows, blocks)
        self.rng = np.random.default_rng(0)
        self.last = 0.0
        """Seconds of the last step."""

    def op_times(self, rows: int, seconds: float) -> list[tuple[Op, float]]:
        """Each op's median over steps of ``rows`` rows, ``seconds`` of them but two at least; ops without a row left out."""
        plans, slots = self._plans(rows)
        try:
            samples = list(self._steps(plans, seconds))
        finally:
            for slot in slots:
                self.runner.release(slot)
        ops = [op for op, _ in samples[0]]
        medians = [statistics.median(sample[i][1] for sample in samples) for i in range(len(ops))]
        program, shape = legalize(self.runner.program), shape_of(rows)
        return [(op, t) for op, t in zip(ops, medians, strict=True) if op.cost(program, shape).activation_bytes]

    def _plans(self, rows: int) -> tuple[Iterator[StepPlan], list[int]]:
        """Endless steps of one kind, one after the other, and the requests they need."""
        if rows > LARGEST_BATCH:
            slot = self._admit(rows)
            blocks = tuple(range(-(-rows // shapes.BLOCK)))
            prompt = StepPlan((Row(slot, 0, rows, blocks, False),))
            return iter(lambda: prompt, None), [slot]
        slots = [self._admit(START + 1) for _ in range(rows)]
        positions = range(START, START + REPEATS + 1)
        return (StepPlan(tuple(Row(s, p, 1, (i,), True) for i, s in enumerate(slots))) for p in positions), slots

    def _steps(self, plans: Iterator[StepPlan], seconds: float) -> Iterator[list[tuple[Op, float]]]:
        self.runner.run(next(plans))
        end = time.perf_counter() + seconds
        for number in range(REPEATS):
            started = time.perf_counter()
            if number >= 2 and started > end:
                return
            with self.runner.timed_ops():
                self.runner.run(next(plans))
            self.last = time.perf_counter() - started
            yield self.runner.op_times()

    def _admit(self, tokens: int) -> int:
        prompt = self.rng.integers(0, self.runner.program.vocab_size, tokens)
        sampling = SamplingParams(max_tokens=REPEATS + 2, temperature=0, ignore_eos=True)
        return self.runner.admit(Request("benchmark", tuple(prompt.tolist()), sampling))
