"""What recording costs: decode steps with the recorder on and off, turn by turn, on one engine.

    python -m benchmarks.recording [--model M] [--clients 1,8,64] [--steps 400]

Every other step is recorded, so that contexts, caches and the machine's mood are the same for both. Per number of requests:
the lower quartile of the steps with and without (others disturb the slower ones), their ratio, and the recorder's own time per step, measured by itself on the same plans:
what the ratio would be on a machine without noise. Ends in one JSON line; status 1 if recording costs more than 1 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

from benchmarks.measure import Contention, machine, table
from forno.config import DEFAULT_MODEL
from forno.engine.build import build_engine, engine_config
from forno.engine.engine import Engine
from forno.observe.recorder import Recorder, Silent
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
    with_it, without = (statistics.quantiles(seconds[on], n=4)[0] for on in (True, False))
    return {
        "clients": clients,
        "on_us": 1e6 * with_it,
        "off_us": 1e6 * without,
        "ratio": with_it / without,
        "own_us": 1e6 * own,
        "own_share": own / without,
    }


def alone(recorder: Recorder, engine: Engine, runner: LastStep) -> float:
    """Seconds per step that the recorder takes on the last plan: the median of many calls."""
    taken = []
    for _ in range(ALONE):
        started = time.perf_counter()
        recorder.begin()
        recorder.planned(engine.scheduler)
        recorder.computed()
        recorder.end(runner.plan, runner.result)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> int:
    """Print the table and the JSON line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--steps", type=int, default=400, help="Steps of each kind for one request; fewer for many.")
    args = parser.parse_args()
    print(f"The limit: a recorded step may take {LIMIT} times what an unrecorded one takes.")
    built = build_engine(engine_config(model=args.model))
    contention = Contention()
    with contention.watched():
        found = [measure(built.engine, n, max(60, args.steps // max(1, n // 8))) for n in map(int, args.clients.split(","))]
    header = ("requests", "off us", "on us", "on/off", "recorder us", "of a step")
    rows = [
        (
            str(int(f["clients"])),
            f"{f['off_us']:.0f}",
            f"{f['on_us']:.0f}",
            f"{f['ratio']:.4f}",
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
