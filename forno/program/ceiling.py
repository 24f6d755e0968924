"""What a machine could do at most, as plain data, and the least time that this allows an op. Measures nothing."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from forno.program.program import Program
from forno.program.shape import Cost, StepShape

DEFINITION = (
    "An op takes no less than its arithmetic at its units' peaks, its weights and KV from DRAM, or its activations from L3. "
    "Coarse: a step takes no less than all arithmetic, or all weights and KV once from DRAM. By op: the sum over its ops."
)
"""For the reader of a report."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Operations per second by unit, bytes per second read from DRAM and from L3; all threads together.

    A unit that the instruction set lacks has the rate of fp32, an L3 that the machine lacks that of DRAM.
    """

    int8: float
    bf16: float
    fp32: float
    dram: float
    l3: float

    def __or__(self, other: Ceiling) -> Ceiling:
        """The better of two measurements, rate by rate: a ceiling is what was reached once."""
        return Ceiling(*(max(mine, its) for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def mean(self, other: Ceiling) -> Ceiling:
        """Between two measurements: what holds for work done between them."""
        return Ceiling(*((mine + its) / 2 for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def arithmetic(self, cost: Cost) -> float:
        """Seconds of the arithmetic alone."""
        return cost.int8 / self.int8 + cost.bf16 / self.bf16 + cost.fp32 / self.fp32

    def limit(self, cost: Cost) -> float:
        """The least seconds of one op; see ``DEFINITION``."""
        memory = (cost.weight_bytes + cost.kv_bytes) / self.dram
        return max(self.arithmetic(cost), memory, cost.activation_bytes / self.l3)

    def step_by_op(self, program: Program, shape: StepShape) -> float:
        """The least seconds of a step whose ops run one after the other."""
        return sum(self.limit(op.cost(program, shape)) for op in program.ops)

    def step(self, program: Program, shape: StepShape) -> float:
        """The coarse roofline: activations stay in the caches, and memory and arithmetic overlap over the whole step.

        A model whose weights fit the L3 cache may exceed it.
        """
        cost = program.cost(shape)
        return max(self.arithmetic(cost), (cost.weight_bytes + cost.kv_bytes) / self.dram)

    def __str__(self) -> str:
        return (
            f"int8 {self.int8 / 1e12:.2f} Tops/s, bf16 {self.bf16 / 1e12:.2f} TFLOP/s, fp32 {self.fp32 / 1e12:.2f} TFLOP/s, "
            f"DRAM {self.dram / 1e9:.1f} GB/s, L3 {self.l3 / 1e9:.0f} GB/s"
        )
