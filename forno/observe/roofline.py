"""What each step waited for, and what it should have taken: a step's own times held against its program's costs.

A step's wall time is taken apart without a rest, into parts named by what would have to be better for the part to shrink:

``starved``   The threads did not get their cores. Each reads its own clock of time on a core; what is missing there of the
              step's time, while it did not sleep for want of work, is summed and shared by the threads: that much longer
              the step took than it would have on a machine of its own.
``overhead``  Everything but the ops' work: scheduling, constraint masks, outputs and what else happens outside of the native
              call, as the step's clock readings say; and inside of it what the model knows to be fixed per step, op and row.
``weights``   Reading weights from memory.
``kv``        Reading and writing keys and values.
``compute``   Arithmetic, and activations on their way through the caches.

The first and most of the second are measured. What is left is the ops' own time, and no clock can take that apart: it is
divided in the ratio in which ``StepTimeModel`` predicts it, so an op that is slower than predicted is charged to what binds
that step. Whether the prediction itself was right is told separately, by ``residual``. Where threads were starved, that part
is taken out before the rest is divided, so a busy neighbour does not look like slow memory; a neighbour that takes memory
bandwidth does, rightly. A step's label is its largest part. Between steps, ``attribution`` adds ``idle``.

Knows no engine: it is given records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forno.observe.record import StepRecord
from forno.observe.step_time import Efficiency, StepTimeModel
from forno.program.ceiling import Ceiling
from forno.program.cost_model import ACTIVATIONS, FP32, INT8, KV, WEIGHTS, CostModel

LABELS = ("weights", "kv", "compute", "overhead", "starved")


@dataclass(frozen=True, slots=True)
class StepAnalysis:
    """One step. Times in seconds."""

    number: int
    seconds: float
    """Wall time, scheduling and outputs included."""
    flops: float
    weight_bytes: float
    kv_bytes: float
    activation_bytes: float
    roofline: float
    """What its ops would take at the machine's ceilings, one after the other: the least that is possible."""
    measured: float
    """What it took to compute: the runner's time without filling masks."""
    predicted: float
    """What it should have taken to compute, by the kernels' known efficiency."""
    parts: dict[str, float]
    """Seconds by label, in the order of ``LABELS``; they sum to ``seconds``."""

    @property
    def intensity(self) -> float:
        """FLOP per byte of memory traffic: weights, keys and values."""
        moved = self.weight_bytes + self.kv_bytes
        return self.flops / moved if moved else 0.0

    @property
    def share(self) -> float:
        """Of the roofline that was reached; above 1 where a cache holds what it reads from DRAM."""
        return self.roofline / self.seconds if self.seconds else 0.0

    @property
    def residual(self) -> float:
        """Measured time over predicted time."""
        return self.measured / self.predicted

    @property
    def label(self) -> str:
        """What the step waited for: its largest part."""
        return max(self.parts, key=self.parts.__getitem__)


@dataclass(frozen=True, slots=True)
class Steps:
    """Many steps at once, ``[steps]`` each; the fields are those of ``StepAnalysis``."""

    seconds: np.ndarray
    costs: np.ndarray
    """float64 ``[6, steps]``, in the order of a cost's parts."""
    roofline: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray
    parts: np.ndarray
    """float64 ``[len(LABELS), steps]``."""

    @property
    def starved(self) -> np.ndarray:
        return self.parts[LABELS.index("starved")]


class Roofline:
    """Analyses steps of a program whose costs ``model`` holds, computed by ``threads`` threads on a machine of ``ceiling``."""

    def __init__(self, model: CostModel, ceiling: Ceiling, threads: int, efficiency: Efficiency) -> None:
        self.model, self.ceiling, self.threads = model, ceiling, threads
        self.times = StepTimeModel(model, ceiling, efficiency)

    def predict(self, starts: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]], outputs: Sequence[int]) -> list[float]:
        """Seconds that computing each step should take; its sequences compute ``tokens`` after ``starts`` cached ones each."""
        return [float(seconds) for seconds in self.times.predict(self.model.features(starts, tokens, outputs)).total]

    def analyse(self, steps: Sequence[StepRecord]) -> list[StepAnalysis]:
        """Each of ``steps``, in order."""
        found = self.evaluate(steps)
        flops = found.costs[INT8 : FP32 + 1].sum(0)
        return [
            StepAnalysis(
                number=step.number,
                seconds=float(found.seconds[i]),
                flops=float(flops[i]),
                weight_bytes=float(found.costs[WEIGHTS, i]),
                kv_bytes=float(found.costs[KV, i]),
                activation_bytes=float(found.costs[ACTIVATIONS, i]),
                roofline=float(found.roofline[i]),
                measured=float(found.measured[i]),
                predicted=float(found.predicted[i]),
                parts=dict(zip(LABELS, found.parts[:, i].tolist(), strict=True)),
            )
            for i, step in enumerate(steps)
        ]

    def evaluate(self, steps: Sequence[StepRecord]) -> Steps:
        """The same as arrays."""
        features = self.model.features(
            [s.starts for s in steps],
            [s.tokens for s in steps],
            [s.outputs for s in steps],
            [s.shared_keys for s in steps],
        )
        costs = self.model.costs(features)
        predicted = self.times.predict(features, costs)
        clocks = np.array([(s.end - s.start, s.seconds, s.mask_seconds, s.cpu_seconds) for s in steps]).reshape(-1, 4).T
        wall, inside, masks, cpu = np.maximum(clocks, 0.0)
        measured = np.clip(inside - masks, 0.0, wall)
        starved = np.where(cpu > 0, np.clip(inside - cpu / self.threads, 0.0, measured), 0.0)
        scale = (measured - starved) / predicted.total
        work = np.stack([predicted.weights, predicted.kv, predicted.compute]) * scale
        parts = np.stack([*work, wall - work.sum(0) - starved, starved])
        return Steps(
            seconds=wall,
            costs=costs.sum(1),
            roofline=self.model.limits(costs, self.ceiling).sum(0),
            measured=measured,
            predicted=predicted.total,
            parts=np.maximum(parts, 0.0),
        )
