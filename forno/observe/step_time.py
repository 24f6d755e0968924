"""How long a step takes: its ops' work at the rates that the kernels reach of the machine's ceilings, plus what is fixed.

The constants were measured once, by ``make bench-steps``, and are never learned while serving: where a step's time and its
prediction part, the machine or the work has changed, and that is worth seeing. Knows no engine.

An op's time is the root of the squares of its times at each resource alone: arithmetic, memory and, for ops that only move
activations, the shared cache. So an op that is far from balance takes what its one resource needs, and a balanced one 1.4
times that, because no kernel overlaps the two perfectly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forno.program import ops
from forno.program.ceiling import Ceiling
from forno.program.cost_model import ACTIVATIONS, BF16, FP32, INT8, KV, OUTPUTS, ROWS, SEQUENCES, WEIGHTS, CostModel, Kind
from forno.program.shape import Axis


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What the kernels of one instruction set reach. Shares are of a ceiling's rate.

    Weights, keys and values come through two stages, one after the other: memory, then the caches. The shares of the two were
    fitted together, on machines whose memory was fast and slow next to their caches, and say little apart: that of memory may
    be above 1. Together they never exceed the ceiling.
    """

    int8: float
    """Share of the peak that linears with int8 weights reach; the next two likewise."""
    bf16: float
    fp32: float
    attention: float
    """Share of its unit's peak that attention reaches."""
    weights: float
    """Share of DRAM bandwidth at which weights pass the first stage."""
    kv: float
    """The same of scattered pages of keys and values in bf16 or float32,"""
    kv_int8: float
    """and in int8."""
    near: float
    """Share of L3 bandwidth at which all of those pass the second stage."""
    activations: float
    """Share of L3 bandwidth that ops reach which only move activations."""
    unpack_rows: float
    """Unpacking a linear's weights takes as long as this many rows' arithmetic."""
    op_seconds: float
    """Of one op that does nothing: finding it, and meeting the other threads."""
    attention_seconds: float
    """Of one more sequence in one attention."""
    step_seconds: float
    """Of a step without ops: arrays in, results out."""
    row_seconds: float
    """The same for one more sequence."""
    fetched: float
    """Share of attention's time for keys and values that the linears before it hide, in steps of ``FETCH_ROWS`` or more,"""
    slack: float
    """as long as it is below this share of the time in which those linears leave memory idle."""


FETCH_ROWS = 16
"""``kFetchRows`` of the executor: steps of that many rows fetch the next layer's pages during linears."""

EFFICIENCIES = {
    # By benchmarks/step_model.py on two cores of an AMD EPYC (family 26, Zen 5), 2026-11-29. Measured: the default model with
    # bf16 and int8 KV and in F16, a model of Qwen2.5-0.5B's shape in Q8_0 and BF16. Held out: that shape in Q4_K_M with both
    # KV types, and the default model in BF16; there the median error is 3.5 to 5.1 %, the 90th percentile 11 to 21 %.
    "avx512": Efficiency(
        int8=0.654,
        bf16=0.965,
        fp32=0.985,
        attention=0.491,
        weights=1.6,
        kv=1.33,
        kv_int8=0.889,
        near=0.648,
        activations=0.3,
        unpack_rows=3.45,
        op_seconds=4e-7,
        attention_seconds=8.4e-7,
        step_seconds=5e-6,
        row_seconds=1e-6,
        fetched=0.407,
        slack=0.235,
    ),
    # The default model in Q4_1 with both KV types, and in BF16; held out: the 0.5B shape in Q8_0, median 6.5 %, p90 18 %.
    "avx2": Efficiency(
        int8=0.415,
        bf16=0.458,
        fp32=0.9,
        attention=0.712,
        weights=1.6,
        kv=0.523,
        kv_int8=0.236,
        near=0.286,
        activations=0.3,
        unpack_rows=0.01,
        op_seconds=4e-7,
        attention_seconds=1.05e-6,
        step_seconds=5e-6,
        row_seconds=1e-6,
        fetched=0.185,
        slack=0.568,
    ),
    # The default model in Q4_1 only, prompts of at most 8 tokens a step: median 6 %, p90 25 %.
    "portable": Efficiency(
        int8=1.0,
        bf16=0.6,
        fp32=0.6,
        attention=0.229,
        weights=0.6,
        kv=1.6,
        kv_int8=0.4,
        near=1.0,
        activations=0.3,
        unpack_rows=0.01,
        op_seconds=4e-7,
        attention_seconds=1.67e-4,
        step_seconds=5e-6,
        row_seconds=1e-6,
        fetched=0.001,
        slack=0.4,
    ),
}


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Predicted seconds of many steps, ``[steps]`` each, by what they are spent on."""

    weights: np.ndarray
    kv: np.ndarray
    compute: np.ndarray
    """Arithmetic, and activations on their way through the caches."""
    fixed: np.ndarray
    """Per step, per op, per sequence: no work of the ops."""

    @property
    def total(self) -> np.ndarray:
        return self.weights + self.kv + self.compute + self.fixed


class StepTimeModel:
    """Predicts the seconds of ``Runner.run`` for steps of the program that ``model`` holds."""

    def __init__(self, model: CostModel, ceiling: Ceiling, efficiency: Efficiency) -> None:
        self.model, self.efficiency = model, efficiency
        self._seconds = np.array([_seconds_per_unit(kind, ceiling, efficiency) for kind in model.kinds]).T[:, :, None]
        self._linear = np.array([_is_linear(kind) for kind in model.kinds])[:, None]
        attention = np.array([isinstance(kind.op, ops.Attention) for kind in model.kinds])
        self._attention = attention[:, None]
        self._num_attentions = float(model.counts[attention].sum())
        self._columns = [OUTPUTS if kind.axis is Axis.OUTPUTS else ROWS for kind in model.kinds]

    def predict(self, features: np.ndarray, costs: np.ndarray | None = None) -> StepTimes:
        """Times of steps with ``CostModel.features``; ``costs`` are theirs where the caller has them."""
        compute, memory, kv = self._alone(features, self.model.costs(features) if costs is None else costs)
        times = np.sqrt(compute**2 + memory**2)
        safe = np.where(times, times, 1.0)
        by_kv = memory * kv / safe
        hidden = self._hidden(features, times, memory, by_kv)
        return StepTimes(
            weights=(memory * (memory - kv) / safe).sum(0),
            kv=by_kv.sum(0) - hidden,
            compute=(compute**2 / safe).sum(0),
            fixed=self._fixed(features),
        )

    def by_kind(self, features: np.ndarray) -> np.ndarray:
        """Seconds ``[kinds, steps]`` of the ops of each kind, before anything is hidden; with what is fixed per op."""
        compute, memory, _ = self._alone(features, self.model.costs(features))
        per_op = self.efficiency.op_seconds + self._attention * self.efficiency.attention_seconds * features[:, SEQUENCES]
        return np.sqrt(compute**2 + memory**2) + self.model.counts[:, None] * per_op

    def _alone(self, features: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``[kinds, steps]``: seconds of computing alone, of memory alone, and of the latter those for keys and values."""
        seconds = costs * self._seconds
        rows = np.maximum(features[:, self._columns].T, 1.0)
        arithmetic = seconds[: FP32 + 1].sum(0) * (1.0 + self._linear * self.efficiency.unpack_rows / rows)
        return np.hypot(arithmetic, seconds[ACTIVATIONS]), seconds[WEIGHTS] + seconds[KV], seconds[KV]

    def _hidden(self, features: np.ndarray, times: np.ndarray, memory: np.ndarray, by_kv: np.ndarray) -> np.ndarray:
        """Seconds ``[steps]`` of attention's reading that happen during linears."""
        idle = np.where(self._linear, times - memory, 0.0).sum(0)
        read = np.where(self._attention, by_kv, 0.0).sum(0)
        hidden = np.minimum(self.efficiency.fetched * read, self.efficiency.slack * idle)
        return np.where(features[:, ROWS] >= FETCH_ROWS, hidden, 0.0)

    def _fixed(self, features: np.ndarray) -> np.ndarray:
        e = self.efficiency
        per_sequence = e.row_seconds + self._num_attentions * e.attention_seconds
        return e.step_seconds + self.model.num_ops * e.op_seconds + per_sequence * features[:, SEQUENCES]


def _is_linear(kind: Kind) -> bool:
    return isinstance(kind.op, (ops.Linear, ops.SampleHead))


def _seconds_per_unit(kind: Kind, ceiling: Ceiling, e: Efficiency) -> list[float]:
    """Seconds per FLOP or byte, in the order of a cost's parts. A linear's or attention's activations are in the near
    caches, and part of what its arithmetic reaches."""
    rates = [0.0] * 6
    shares = (e.attention,) * 3 if isinstance(kind.op, ops.Attention) else (e.int8, e.bf16, e.fp32)
    peaks = (ceiling.int8, ceiling.bf16, ceiling.fp32)
    for part, peak, share in zip((INT8, BF16, FP32), peaks, shares, strict=True):
        rates[part] = 1.0 / (peak * share)
    passing = 1.0 / (ceiling.l3 * e.near)
    for part, share in ((WEIGHTS, e.weights), (KV, e.kv_int8 if kind.cache == "int8" else e.kv)):
        rates[part] = max(1.0 / (ceiling.dram * share) + passing, 1.0 / ceiling.dram)
    if not _is_linear(kind) and not isinstance(kind.op, ops.Attention):
        rates[ACTIVATIONS] = 1.0 / (ceiling.l3 * e.activations)
    return rates
