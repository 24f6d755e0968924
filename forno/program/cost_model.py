"""A program's costs for many steps at once: exact linear functions of a few sums over each step's sequences.

``op.cost(program, shape)`` stays the definition. Every op's cost is a sum of constants times the step's rows, outputs,
attended pairs and cached tokens read, so five shapes tell its constants; ops of one kind with equal constants are one line.
Knows no machine and no time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from forno.program import ops
from forno.program.ceiling import Ceiling
from forno.program.ops import Op
from forno.program.program import Program
from forno.program.shape import Axis, Cost, Span, StepShape

INT8, BF16, FP32, WEIGHTS, KV, ACTIVATIONS = range(6)
"""The parts of a cost, in the order of ``Cost``'s fields."""
ONE, ROWS, OUTPUTS, SEQUENCES, FIRST_WINDOW = range(5)
"""Columns of ``features``; from the last on, attended and read tokens of each window in turn."""
ODD = StepShape((Span(10_007, 101), Span(211, 1)), 65_537)
"""Ops that cost the same in a step of such a shape do so in every step: nothing in it is a multiple of anything else."""
_HEADS = {"embed_tokens": "head", "lm_head": "head"}


def kind(op: Op) -> str:
    """What an op is called in a report, alike in every layer: ``qkv`` or ``gate|up`` for linears, else the op's name."""
    if isinstance(op, ops.SampleHead):
        return "head"
    if isinstance(op, ops.Linear):
        names = [name.split(".")[-2].removesuffix("_proj") for name in op.weights]
        joined = "|".join(_HEADS.get(name, name) for name in names)
        return "qkv" if joined == "q|k|v" else joined
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(op).__name__).lower()


@dataclass(frozen=True, slots=True)
class Kind:
    """Ops that are called alike and cost the same in every step."""

    name: str
    op: Op
    """The first of them."""
    count: int
    axis: Axis
    """What the rows that it writes are counted by."""
    cache: str
    """Type of the cached keys and values that it reads or writes, or nothing."""


class CostModel:
    """The costs of ``program`` (with the ops that the backend runs: see ``legalize``), views left out: they cost nothing."""

    def __init__(self, program: Program) -> None:
        attentions = [op for op in program.ops if isinstance(op, ops.Attention)]
        self.windows = tuple(sorted({op.window for op in attentions}))
        """Attention windows in the program; 0 is none."""
        found: dict[tuple[str, Cost], list[Op]] = {}
        for op in program.ops:
            if not isinstance(op, ops.Split):
                found.setdefault((kind(op), op.cost(program, ODD)), []).append(op)
        self.kinds = tuple(_kind_of(program, name, alike) for (name, _), alike in found.items())
        self.counts = np.array([k.count for k in self.kinds], np.float64)
        """``[kinds]``"""
        self._per_op = np.array([self._constants(program, k.op) for k in self.kinds])

    @property
    def num_ops(self) -> int:
        return sum(k.count for k in self.kinds)

    def features(
        self,
        starts: Sequence[Sequence[int]],
        tokens: Sequence[Sequence[int]],
        outputs: Sequence[int],
        shared_keys: Sequence[int] = (),
    ) -> np.ndarray:
        """float64 ``[steps, features]`` of steps whose sequences compute ``tokens`` after ``starts`` cached ones each.

        ``shared_keys`` (none: no sharing): cached tokens of each step that attention without a window need not read, since
        it reads them for another sequence.
        """
        sizes = [len(t) for t in tokens]
        start = np.fromiter((s for step in starts for s in step), np.float64, sum(sizes))
        count = np.fromiter((t for step in tokens for t in step), np.float64, sum(sizes))
        step = np.repeat(np.arange(len(sizes)), sizes)

        def total(values: np.ndarray) -> np.ndarray:
            return np.bincount(step, values, len(sizes))

        columns = [np.ones(len(sizes)), total(count), np.asarray(outputs, np.float64), np.asarray(sizes, np.float64)]
        for window in self.windows:
            read = total(_read(start, count, window))
            spared = np.asarray(shared_keys, np.float64) if len(shared_keys) and not window else 0.0
            columns += [total(_attended(start, count, window)), read - spared]
        return np.stack(columns, axis=1)

    def costs(self, features: np.ndarray) -> np.ndarray:
        """float64 ``[6, kinds, steps]``: the parts of a cost (``INT8`` ... ``ACTIVATIONS``), all ops of each kind together."""
        return self.costs_of_one(features) * self.counts[:, None]

    def costs_of_one(self, features: np.ndarray) -> np.ndarray:
        """The same of one op of each kind."""
        return np.moveaxis(self._per_op @ features.T, 1, 0)

    def limits(self, costs: np.ndarray, ceiling: Ceiling) -> np.ndarray:
        """float64 ``[kinds, steps]``: ``Ceiling.limit`` of each op, summed by kind. ``costs`` as ``costs`` returns them."""
        arithmetic = costs[INT8] / ceiling.int8 + costs[BF16] / ceiling.bf16 + costs[FP32] / ceiling.fp32
        memory = (costs[WEIGHTS] + costs[KV]) / ceiling.dram
        return np.maximum(np.maximum(arithmetic, memory), costs[ACTIVATIONS] / ceiling.l3)

    def _constants(self, program: Program, op: Op) -> np.ndarray:
        """float64 ``[6, features]``: what one op costs per unit of each feature. Differences of small whole numbers and
        eighths, so exact."""

        def cost(spans: tuple[Span, ...] = (), outputs: int = 0) -> np.ndarray:
            return np.array(astuple(op.cost(program, StepShape(spans, outputs))))

        result = np.zeros((6, FIRST_WINDOW + 2 * len(self.windows)))
        nothing = cost()
        result[:, ONE] = nothing
        result[:, OUTPUTS] = cost(outputs=1) - nothing
        # Sums of (rows, attended, read): (1, 1, 1), (1, 2, 2) and (2, 3, 2). With a window of 1 all three are the rows.
        first, second, pair = (cost((Span(*s),)) - nothing for s in ((0, 1), (1, 1), (0, 2)))
        result[:, ROWS] = 2 * first - second
        if isinstance(op, ops.Attention):
            at = FIRST_WINDOW + 2 * self.windows.index(op.window)
            result[:, at] = pair - second - result[:, ROWS]
            result[:, at + 1] = second - first - result[:, at]
        return result


def _kind_of(program: Program, name: str, alike: list[Op]) -> Kind:
    op = alike[0]
    axes = [program.values[out].axis for out in op.outputs if out in program.values]
    cache = getattr(op, "cache", "")
    return Kind(name, op, len(alike), axes[0] if axes else Axis.ROWS, program.caches[cache].dtype if cache else "")


def _attended(start: np.ndarray, count: np.ndarray, window: int) -> np.ndarray:
    """``Span.attended_within`` of many."""
    growing = np.clip(window - start, 0, count) if window else count
    return growing * start + growing * (growing + 1) / 2 + (count - growing) * window


def _read(start: np.ndarray, count: np.ndarray, window: int) -> np.ndarray:
    """``Span.read_within`` of many."""
    return np.minimum(start + count, window + count - 1) if window else start + count
