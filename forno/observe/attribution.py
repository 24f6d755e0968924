"""Where the engine's time goes, in all: running totals over the steps that a recorder remembers.

Fed in batches by whoever wants to read them, so a step costs nothing here.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from forno.observe.record import StepRecord
from forno.observe.roofline import LABELS, Roofline
from forno.program.cost_model import ACTIVATIONS, BF16, FP32, INT8, KV, WEIGHTS

IDLE = "idle"
RESIDUALS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0)
"""Upper bounds of the residuals' histogram."""
MEMORY = 256
"""Steps that the drift remembers: it forgets the older ones exponentially."""
BATCH = 256
"""Steps analysed at once: more of them would only need more memory."""
STARVED = 0.1
"""Share of a step without cores above which it says nothing about drift."""


@dataclass(slots=True)
class Totals:
    """Since the start. Seconds, FLOPs and bytes only grow."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*LABELS, IDLE), 0.0))
    """By label; their sum is the time since the first step began."""
    steps: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LABELS, 0))
    """Steps by the label of their largest part."""
    flops: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("int8", "bf16", "fp32"), 0.0))
    bytes: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("weights", "kv", "activations"), 0.0))
    step_seconds: float = 0.0
    """Wall time of the steps."""
    roofline: float = 0.0
    """Seconds that they would have taken at the machine's ceilings."""
    measured: float = 0.0
    """Seconds that computing them took,"""
    predicted: float = 0.0
    """and should have taken."""
    residuals: list[int] = field(default_factory=lambda: [0] * (len(RESIDUALS) + 1))
    """Steps by measured over predicted time: up to each of ``RESIDUALS``, and above."""
    residual_sum: float = 0.0
    drift: float = 1.0
    """Measured over predicted time of the last steps that had their cores: away from 1, the machine or the work is not what
    the prediction knows."""

    @property
    def share(self) -> float:
        """Of the roofline that all steps together reached."""
        return self.roofline / self.step_seconds if self.step_seconds else 0.0


class Attribution:
    """Totals over the steps that ``source(since)`` gives: all with a number above ``since`` that it still holds, oldest first.
    Numbers begin with 1. Any thread may call.

    ``advance`` must be called before the source forgets steps: those that it has not seen are missing from the totals, and
    counted in ``missed``.
    """

    def __init__(self, roofline: Roofline, source: Callable[[int], Sequence[StepRecord]]) -> None:
        self.roofline, self.totals = roofline, Totals()
        self.missed = 0
        self._source = source
        self._last = 0
        """Number of the last step seen."""
        self._lock = threading.Lock()
        self._end = math.nan
        """When the last step seen was over."""
        self._log_drift: float | None = None

    def advance(self) -> Totals:
        """Take in the steps since the last call; returns the totals."""
        with self._lock:
            steps = self._source(self._last)
            for i in range(0, len(steps), BATCH):
                self._add(steps[i : i + BATCH])
            return deepcopy(self.totals)

    def _add(self, steps: Sequence[StepRecord]) -> None:
        self.missed += steps[-1].number - self._last - len(steps)
        found, totals = self.roofline.evaluate(steps), self.totals
        self._between(steps)
        for label, part in zip(LABELS, found.parts.sum(1).tolist(), strict=True):
            totals.seconds[label] += part
        for label, count in zip(LABELS, np.bincount(found.parts.argmax(0), minlength=len(LABELS)).tolist(), strict=True):
            totals.steps[label] += count
        costs = found.costs.sum(1).tolist()
        for part, unit in ((INT8, "int8"), (BF16, "bf16"), (FP32, "fp32")):
            totals.flops[unit] += costs[part]
        for part, kind in ((WEIGHTS, "weights"), (KV, "kv"), (ACTIVATIONS, "activations")):
            totals.bytes[kind] += costs[part]
        totals.step_seconds += float(found.seconds.sum())
        totals.roofline += float(found.roofline.sum())
        totals.measured += float(found.measured.sum())
        totals.predicted += float(found.predicted.sum())
        self._observe(found.measured, found.predicted, found.starved)
        self._last = steps[-1].number

    def _between(self, steps: Sequence[StepRecord]) -> None:
        """The time before each step: idle until one of its requests was there, then overhead. Not counted at the start, and
        where steps were missed."""
        last = self._last
        for step in steps:
            gap = step.start - self._end if step.number == last + 1 else 0.0
            last, self._end = step.number, step.end
            if gap > 0:  # False, too, before the first step
                came = min((r.arrival for r in step.requests if r.arrival), default=step.start)  # 0: no longer known
                idle = min(max(came - (step.start - gap), 0.0), gap)
                self.totals.seconds[IDLE] += idle
                self.totals.seconds["overhead"] += gap - idle

    def _observe(self, measured: np.ndarray, predicted: np.ndarray, starved: np.ndarray) -> None:
        """Residuals into the histogram and the drift."""
        totals = self.totals
        residuals = measured / predicted
        counts = np.bincount([bisect_left(RESIDUALS, r) for r in residuals.tolist()], minlength=len(RESIDUALS) + 1)
        totals.residuals = [a + b for a, b in zip(totals.residuals, counts.tolist(), strict=True)]
        totals.residual_sum += float(residuals.sum())
        fair = (measured > 0) & (starved <= STARVED * measured)
        logs = np.log((measured[fair] - starved[fair]) / predicted[fair])
        if not len(logs):
            return
        if self._log_drift is None:
            self._log_drift = float(logs[0])
        keep = 1.0 - 1.0 / MEMORY
        weights = keep ** np.arange(len(logs) - 1, -1, -1.0)
        self._log_drift = keep ** len(logs) * self._log_drift + float((weights * logs).sum()) / MEMORY
        totals.drift = math.exp(self._log_drift)
