"""Small fixed steps whose instructions are counted op by op; ``benchmarks.counts`` starts this, under callgrind or not.

    python -m benchmarks.counted --isa avx2 [--counter stepping] [--cases "q4_1;q8_0"]

Prints a JSON line per step: its case, rows, the ops' kinds, and their counts unless a tool outside counts. One thread, one
layer, and values that no count depends on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.kernels.shapes import BLOCK, RandomTensors
from benchmarks.weights import held_as
from forno.kernels.cpu.lower import Limits
from forno.kernels.cpu.pack import pack_weights
from forno.models import build_program
from forno.program import passes
from forno.program.cost_model import kind
from forno.program.formats import FORMATS
from forno.request import Request, Row, SamplingParams, StepPlan
from forno.runner.cpu import CpuRunner

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
"""Rows that every format's blocks divide, and little work: counting takes up to 20 microseconds an instruction."""
ROWS = (1, 7, 40)
"""One row, a tile and a remainder, and enough for the paths that many rows take."""
CONTEXT = 40
COUNTERS = ("stepping", "marks")
"""Who counts: this process, or a tool that watches the marks between ops."""
WHOLE, MANY = "q8_0", ("q4_1", "q4_k")
"""The case that is stepped through whole, and those whose many rows are: stepping through everything would take minutes."""
GATED = ("gate|up",)
CACHES = ("qkv_prepare", "attention")
"""Kinds of op that are stepped through in the other cases: what a codec changes, and what a cache's type does."""


@dataclass(frozen=True, slots=True)
class Case:
    """A program to count."""

    name: str
    codec: str
    kv: str = "bf16"
    fused: bool = True

    def runner(self, isa: str) -> CpuRunner:
        program = build_program(CONFIG)
        program = program.with_formats({name: held_as(self.codec, name) for name in program.weights}).with_kv_dtype(self.kv)
        program = passes.apply(program, () if self.fused else passes.default_passes())
        blocks = max(ROWS) * -(-(CONTEXT + 1) // BLOCK)
        limits = Limits(1, isa, 0, max(ROWS), program.max_positions, blocks, BLOCK)
        return CpuRunner(program, pack_weights(program, RandomTensors(program), 1), limits)


CASES = {
    case.name: case
    for case in (
        *(Case(codec, codec) for codec in FORMATS),
        Case("q8_0, int8 cache", "q8_0", kv="int8"),
        Case("q8_0, float32 cache", "q8_0", kv="float32"),
        Case("q8_0, no fusion", "q8_0", fused=False),
    )
}


def count(case: Case, isa: str, counter: str, rows: int, only: Sequence[str] = ()) -> dict[str, Any]:
    """The record of a step of ``rows`` decoding sequences, or of one prompt of more than 32; of ``only`` these kinds."""
    runner, prompt = case.runner(isa), rows > BLOCK
    length, start = (rows, 0) if prompt else (CONTEXT + 1, CONTEXT)
    # Logprobs of the whole prompt: otherwise the only layer would go on with the last row alone.
    sampling = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, prompt_logprobs=0 if prompt else None)
    slots = [runner.admit(Request("counted", tuple(range(length)), sampling)) for _ in range(1 if prompt else rows)]
    each = -(-(CONTEXT + 1) // BLOCK)
    blocks = [tuple(range(i * each, (i + 1) * each)) for i in range(len(slots))]
    plan = StepPlan(tuple(Row(s, start, length - start, b, True) for s, b in zip(slots, blocks, strict=True)))
    kinds = [kind(op) for op, _ in runner.op_counts()]
    chosen = [i for i, name in enumerate(kinds) if name in (only or kinds)]
    with runner.counted_ops(counter == "stepping", range(chosen[0], chosen[-1] + 1)):
        runner.run(plan)
    counts = [n for _, n in runner.op_counts()] if counter == "stepping" else None
    return {"case": case.name, "rows": rows, "kinds": kinds, "counts": counts}


def stepped(case: Case) -> Iterator[tuple[int, Sequence[str]]]:
    """Rows and kinds of op of ``case`` that are worth the time of stepping."""
    if case.name == WHOLE:
        yield from ((1, ()), (7, ()))
    elif case.name == case.codec:
        yield from ((rows, GATED) for rows in (ROWS if case.name in MANY else ROWS[:-1]))
    elif case.fused:
        yield 7, CACHES


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run the steps whose instructions are counted.")
    parser.add_argument("--isa", required=True)
    parser.add_argument("--counter", default="stepping", choices=COUNTERS)
    parser.add_argument("--cases", default=";".join(CASES), help="names, separated by semicolons")
    options = parser.parse_args(arguments)
    for case in (CASES[name] for name in options.cases.split(";")):
        for rows, only in stepped(case) if options.counter == "stepping" else ((rows, ()) for rows in ROWS):
            print(json.dumps(count(case, options.isa, options.counter, rows, only)), flush=True)


if __name__ == "__main__":
    main()
