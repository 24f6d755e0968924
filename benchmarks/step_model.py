"""How long steps take against what ``forno.observe.step_time`` predicts, and the constants that predict best.

    python -m benchmarks.step_model measure [--model M] [--isa I] [--kv-cache-dtype D] [--out F.json]
    python -m benchmarks.step_model fit F.json ... [--held G.json ...]

``measure`` times steps of many shapes (decodes of several batches and contexts, prompt chunks at several starts, both mixed) on
one runner, and prints how far the shipped constants are off. ``fit`` finds constants for the given measurements of one
instruction set, starting from the shipped ones, and prints them with their errors, on measurements that were held out too.
The machine's ceilings are measured in between. Steps in which the threads lost their cores are left out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import progress, table
from forno.config import DEFAULT_MODEL
from forno.engine.build import engine_config
from forno.kernels.cpu import ceilings
from forno.kernels.cpu.buffers import legalize
from forno.loader.open import open_checkpoint
from forno.loader.sources import resolve
from forno.observe.step_time import EFFICIENCIES, Efficiency, StepTimeModel
from forno.program.ceiling import Ceiling
from forno.program.cost_model import CostModel
from forno.request import Request, Row, SamplingParams, StepPlan
from forno.runner import setup
from forno.runner.cpu import CpuRunner

Shape = tuple[tuple[int, int], ...]
"""(start, tokens) of each sequence of a step."""
DECODES = 3
"""Steps that are timed of each shape of decodes; another one before warms up."""
CHUNK = 512
SPARE = 16
"""Tokens of room for each sequence's decodes."""
BETWEEN = 15
"""Shapes between two measurements of the ceilings, whose median counts: neighbours change them from second to second."""
DISTURBED = 0.95
"""Share of the threads' CPU time below which a step is left out."""
HELD = ("activations", "op_seconds", "step_seconds", "row_seconds")
"""Constants measured on their own: the last three with models of almost no work, of 2 and of 30 layers."""
MOST = {"unpack_rows": 100.0, "weights": 1.6, "kv": 1.6, "kv_int8": 1.6}
"""Largest values of constants that are no shares, or of a stage that is not alone."""
TOLERANCE = 0.05
"""Relative error beyond which the fit counts an error linearly rather than squared: outliers are the machine's."""


def mix(room: int, chunk: int) -> Iterator[Shape]:
    """Shapes whose sequences hold at most ``room`` tokens together, with steps of up to ``chunk`` tokens of a prompt."""
    rng = np.random.default_rng(0)
    for batch in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64):
        yield from (((context, 1),) * batch for context in (32, 160, 600, 1500))
        if batch in (4, 16):
            yield tuple((int(context), 1) for context in rng.integers(20, 1200, batch))
    sizes = [size for size in (8, 16, 32, 64, 128, 256, 512) if size <= chunk]
    for size in sizes:
        yield from (((start, size),) for start in (0, 512, 1400))
        if size in (16, 64, 128, 256):
            yield from (((300, 1),) * batch + ((256, size),) for batch in (1, 4, 8, 16, 32))
    if chunk >= 400:
        yield from (((0, 100),) * count for count in (2, 4))


class Bench:
    """Steps of any shape on one runner: random tokens, blocks of their own, whatever the cache holds."""

    def __init__(self, runner: CpuRunner) -> None:
        self.runner, self.rng = runner, np.random.default_rng(1)
        self.steps: list[dict[str, Any]] = []

    def run(self, shape: Shape) -> None:
        """Time ``shape``: once where it has a prompt, else as it decodes on."""
        held = [self._admit(start + tokens) for start, tokens in shape]
        ends = np.cumsum([self.blocks(start, tokens) for start, tokens in shape]).tolist()
        tables = [tuple(range(begin, end)) for begin, end in zip([0, *ends], ends, strict=False)]
        rounds = DECODES + 1 if all(tokens == 1 for _, tokens in shape) else 1
        for i in range(rounds):
            rows = [(slot, start + i, tokens, table) for slot, (start, tokens), table in zip(held, shape, tables, strict=True)]
            cpu = time.process_time()
            seconds = self.runner.run(StepPlan(tuple(Row(*row, True) for row in rows))).seconds
            used = (time.process_time() - cpu) / (seconds * self.runner.threads)
            if used >= DISTURBED and (i or rounds == 1):
                shape_now = [row[1:3] for row in rows]
                self.steps.append({"shape": shape_now, "seconds": seconds})
        for slot in held:
            self.runner.release(slot)

    def fits(self, shape: Shape) -> bool:
        longest = max(start + tokens for start, tokens in shape) + SPARE
        return longest <= self.runner.max_model_len and sum(self.blocks(*part) for part in shape) <= self.runner.num_blocks

    def blocks(self, start: int, tokens: int) -> int:
        return -(-(start + tokens + SPARE) // self.runner.block_size)

    def _admit(self, tokens: int) -> int:
        prompt = tuple(self.rng.integers(0, self.runner.program.vocab_size, tokens).tolist())
        return self.runner.admit(Request("bench", prompt, SamplingParams(max_tokens=SPARE, temperature=0, ignore_eos=True)))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Rounds of the whole mix, in random order, for about ``options.seconds``; at least one."""
    config = engine_config(
        num_blocks_override=options.room // 32,
        max_num_batched_tokens=CHUNK,
        max_model_len=2048,
        isa=options.isa,
        threads=options.threads,
        kv_cache_dtype=options.kv_cache_dtype,
    )
    runner = CpuRunner.from_checkpoint(open_checkpoint(resolve(options.model)), config)
    runner.prefault(runner.kv_bytes / setup.GIB)
    while runner.executor.prefaulted < 0.99 * runner.kv_bytes:  # else reads of untouched memory would all be of one page
        time.sleep(0.05)
    bench, started = Bench(runner), time.perf_counter()
    shapes = [shape for shape in mix(options.room, options.chunk) if bench.fits(shape)]
    found: list[Ceiling] = []
    while not bench.steps or time.perf_counter() - started < options.seconds:
        for done, i in enumerate(bench.rng.permutation(len(shapes))):
            if done % BETWEEN == 0:
                found.append(ceilings.measure(runner.threads, runner.isa, 0.02))
            bench.run(shapes[i])
    ceiling = Ceiling(*np.median([astuple(each) for each in found], axis=0).tolist())
    progress(f"{len(bench.steps)} steps of {len(shapes)} shapes; {ceiling}")
    return {
        "model": options.model,
        "isa": runner.isa,
        "threads": runner.threads,
        "kv_cache_dtype": options.kv_cache_dtype,
        "ceiling": asdict(ceiling),
        "steps": bench.steps,
    }


@dataclass(frozen=True)
class Measured:
    """A file of measurements, as the arrays that a prediction needs."""

    name: str
    isa: str
    model: CostModel
    ceiling: Ceiling
    shapes: list[Shape]
    features: np.ndarray
    seconds: np.ndarray

    @classmethod
    def of(cls, found: dict[str, Any]) -> Measured:
        config = engine_config(kv_cache_dtype=found["kv_cache_dtype"])
        program = legalize(setup.build(open_checkpoint(resolve(found["model"])), config))
        model, steps = CostModel(program), found["steps"]
        starts, tokens = ([[part[i] for part in step["shape"]] for step in steps] for i in (0, 1))
        return cls(
            name=f"{Path(found['model']).stem} {found['kv_cache_dtype']}",
            isa=found["isa"],
            model=model,
            ceiling=Ceiling(**found["ceiling"]),
            shapes=[tuple((start, count) for start, count in step["shape"]) for step in steps],
            features=model.features(starts, tokens, [len(step) for step in starts]),
            seconds=np.array([step["seconds"] for step in steps]),
        )

    def residuals(self, efficiency: Efficiency) -> np.ndarray:
        """Measured over predicted time."""
        predicted = StepTimeModel(self.model, self.ceiling, efficiency).predict(self.features).total
        return np.asarray(self.seconds / predicted)


def loss(efficiency: Efficiency, measured: Sequence[Measured]) -> float:
    """Mean over the files of their mean error: squared where it is small, linear where it is large."""
    errors = [np.log(m.residuals(efficiency)) / TOLERANCE for m in measured]
    return float(np.mean([np.mean(np.sqrt(1.0 + e**2) - 1.0) for e in errors]))


def fit(efficiency: Efficiency, measured: Sequence[Measured]) -> Efficiency:
    """Better constants, one at a time by steps that shrink, until none of half a percent helps."""
    free = {field.name: 0.2 for field in fields(Efficiency) if field.name not in HELD}
    best = loss(efficiency, measured)
    while max(free.values()) > 0.005:
        for name, step in free.items():
            for factor in (1.0 + step, 1.0 / (1.0 + step)):
                value = getattr(efficiency, name) * factor
                other = replace(efficiency, **{name: min(value, MOST.get(name, 1.0))})
                error = loss(other, measured)
                if error < best - 1e-9:
                    best, efficiency, free[name] = error, other, 1.3 * step
                    break
            else:
                free[name] = step / 2
    return efficiency


def report(measured: Sequence[Measured], efficiency: Efficiency) -> str:
    """Errors of each file, and the shapes where they are largest."""
    rows = []
    for m in measured:
        residuals = m.residuals(efficiency)
        errors = np.abs(residuals - 1)
        worst = sorted(zip(errors, residuals, m.shapes, strict=True), key=lambda entry: -entry[0])[:3]
        named = ", ".join(f"{len(shape)} x {shape[0][0]}+{shape[-1][1]}: {residual:.2f}" for _, residual, shape in worst)
        shares = (np.median(errors), np.quantile(errors, 0.9), np.median(residuals) - 1)
        rows.append([m.name, str(len(errors)), *(f"{share:.1%}" for share in shares), f"{m.ceiling.dram / 1e9:.0f}", named])
    header = [
        "steps of",
        "count",
        "median error",
        "p90",
        "median residual - 1",
        "DRAM GB/s",
        "largest (sequences x start+tokens)",
    ]
    return table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Step times against their prediction, and constants that predict better.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("measure")
    verb.add_argument("--model", default=DEFAULT_MODEL)
    verb.add_argument("--isa", default="auto")
    verb.add_argument("--threads", type=int, default=0)
    verb.add_argument("--kv-cache-dtype", default="auto")
    verb.add_argument("--seconds", type=float, default=10.0, help="at least one round of the mix is run")
    verb.add_argument("--room", type=int, default=26_000, metavar="TOKENS", help="that the KV cache holds")
    verb.add_argument("--chunk", type=int, default=CHUNK, help="longest part of a prompt in one step")
    verb.add_argument("--out", type=Path, help="keep the measurements here, for fit")
    verb = verbs.add_parser("fit")
    verb.add_argument("files", nargs="+", type=Path)
    verb.add_argument("--held", nargs="*", default=[], type=Path, help="measurements to predict only")
    options = parser.parse_args(arguments)
    if options.verb == "measure":
        found = measure(options)
        if options.out:
            options.out.write_text(json.dumps(found))
        print(report([Measured.of(found)], EFFICIENCIES[found["isa"]]))
        return
    measured, held = ([Measured.of(json.loads(path.read_text())) for path in paths] for paths in (options.files, options.held))
    (isa,) = {m.isa for m in measured + held}
    efficiency = fit(EFFICIENCIES[isa], measured)
    print(report(measured, efficiency))
    if held:
        print("\nHeld out:\n" + report(held, efficiency))
    print(json.dumps({name: float(f"{value:.3g}") for name, value in asdict(efficiency).items()}))


if __name__ == "__main__":
    main()
