"""What recording costs: decode steps with the recorder on and off, turn by turn, on one engine.

    python -m benchmarks.recording [--model M] [--clients 1,8,64] [--steps 2000]

Every other step is recorded, so that contexts, caches and the machine's mood are the same for both. Per number of requests:
the median step without, how much longer its recorded neighbour takes (median of the differences, with the interval that
holds it in 19 of 20 runs), and the recorder's own time per step, measured by itself on the same plans: what the difference
would be on a machine without noise. Ends in one JSON line; status 1 if recording costs more than 1 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.measure import Contention, machine, table
from forno.config import DEFAULT_MODEL
from forno.engine.build import build_engine, engine_config
from forno.engine.engine import Engine
from forno.observe.recorder import Recorder
from forno.observe.silent import Silent
from forno.request import Request, SamplingParams, StepPlan, StepResult

PROMPT = 32
LIMIT = 1.01
"""Ratio above which recording is too dear."""
SETTLE = 20
"""Steps before any is measured."""
ALONE = 2000
"""Times that the recorder is called by itself."""


class LastStep:
    """A runner that remembers what it was asked for last."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.plan, self.result = StepPlan(()), StepResult(())

    def run(self, plan: StepPlan) -> StepResult:
        self.plan, self.result = plan, self.runner.run(plan)
        return self.result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)


def measure(engine: Engine, clients: int, steps: int) -> dict[str, float]:
    """Seconds of a step with and without recording, and of the recorder by itself, in microseconds."""
    recorder = engine.recorder
    assert isinstance(recorder, Recorder)
    sampling = SamplingParams(max_tokens=2 * steps + SETTLE + 40, ignore_eos=True, temperature=0.0)
    for i in range(clients):
        prompt = tuple((i * 131 + j * 17) % 40000 for j in range(PROMPT))
        engine.add_request(Request(f"recording-{i}", prompt, sampling))
    while any(s.pending > 1 for s in engine.sequences()):
        engine.step()
    runner = engine.runner = LastStep(engine.runner)  # type: ignore[assignment]
    seconds: dict[bool, list[float]] = {True: [], False: []}
    silent = Silent()
    for i in range(SETTLE + 2 * steps):
        on = i % 4 in (0, 3)  # neither is always the first of a pair
        engine.recorder = recorder if on else silent
        started = time.perf_counter()
        engine.step()
        if i >= SETTLE:
            seconds[on].append(time.perf_counter() - started)
    engine.recorder = recorder
    own = alone(recorder, engine, runner)
    for sequence in engine.sequences():
        engine.abort(sequence.request.id)
    while engine.has_work:
        engine.step()
    engine.runner = runner.runner
    off = statistics.median(seconds[False])
    low, middle, high = (1 + d / off for d in differences(seconds[True], seconds[False]))
    return {
        "clients": clients,
        "pairs": len(seconds[True]),
        "off_us": 1e6 * off,
        "ratio": middle,
        "ratio_low": low,
        "ratio_high": high,
        "own_us": 1e6 * own,
        "own_share": own / off,
    }


def differences(on: Sequence[float], off: Sequence[float]) -> tuple[float, float, float]:
    """The median difference of pairs, between the ends of its 95 % interval (of a binomial, so whatever the distribution)."""
    ordered = sorted(a - b for a, b in zip(on, off, strict=True))
    reach = round(0.98 * len(ordered) ** 0.5)
    middle = len(ordered) // 2
    return ordered[max(0, middle - reach)], statistics.median(ordered), ordered[min(len(ordered) - 1, middle + reach)]


def alone(recorder: Recorder, engine: Engine, runner: LastStep) -> float:
    """Seconds per step that the recorder takes on the last plan: the median of many calls."""
    taken = []
    for _ in range(ALONE):
        started = time.perf_counter()
        recorder.step(runner.plan, runner.result, (started, started, started, started), engine.scheduler)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> int:
    """Print the table and the JSON line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--steps", type=int, default=2000, help="Steps of each kind for one request; fewer for many.")
    args = parser.parse_args()
    print(f"The limit: a recorded step may take {LIMIT} times what an unrecorded one takes.")
    built = build_engine(engine_config(model=args.model))
    contention = Contention()
    with contention.watched():
        found = [measure(built.engine, n, max(60, round(args.steps / n**0.65))) for n in map(int, args.clients.split(","))]
    header = ("requests", "step us", "on/off", "95 %", "recorder us", "of a step")
    rows = [
        (
            str(int(f["clients"])),
            f"{f['off_us']:.0f}",
            f"{f['ratio']:.4f}",
            f"{f['ratio_low']:.4f} to {f['ratio_high']:.4f}",
            f"{f['own_us']:.1f}",
            f"{f['own_share']:.2%}",
        )
        for f in found
    ]
    print(table(header, rows))
    others = round(contention.seen[0], 2)
    print(json.dumps({"measure": "recording", "machine": machine(), "others_cores": others, "results": found}))
    return 0 if all(f["own_share"] < LIMIT - 1 for f in found) else 1


if __name__ == "__main__":
    sys.exit(main())
