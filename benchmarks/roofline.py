"""What a step or an op could take at the least: the machine's measured ceilings, and the program's own costs held against them.

Knows no engine and measures no op.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from forno.kernels.cpu.buffers import legalize
from forno.program import ops
from forno.program.ops import Op
from forno.program.program import Program
from forno.program.shape import Cost, StepShape
from forno.tools import doctor

DEFINITION = (
    "An op takes no less than its arithmetic at its units' peaks, its weights and KV from DRAM, or its activations from L3. "
    "Coarse: a step takes no less than all arithmetic, or all weights and KV once from DRAM. By op: the sum over its ops."
)
"""For the reader of a report."""
_HEADS = {"embed_tokens": "head", "lm_head": "head"}


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the machine could do at most: operations per second by unit, bytes per second read from DRAM and from L3."""

    int8: float
    bf16: float
    fp32: float
    dram: float
    l3: float

    @classmethod
    def measure(cls, threads: int, isa: str, seconds: float = doctor.SECONDS) -> Ceiling:
        """Five rates, ``seconds`` each. A unit that the instruction set lacks is replaced by fp32, an L3 by DRAM."""
        found = doctor.measure(threads, isa, seconds)
        rates = {name: found[name] or found["fp32"] or 0.0 for name in ("int8", "bf16", "fp32")}
        dram = found["dram_read"] or 0.0
        return cls(**rates, dram=dram, l3=found["l3_read"] or dram)

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
class KindTime:
    """All ops of one kind in a step."""

    kind: str
    count: int
    seconds: float
    cost: Cost
    """Of all of them together."""
    limit: float
    """Seconds, the sum of their limits."""

    @property
    def fraction(self) -> float:
        """Of the limit that is reached; above 1 where a cache holds what the limit reads from DRAM."""
        return self.limit / self.seconds if self.seconds else 0.0

    @property
    def rate(self) -> tuple[float, str]:
        """Work per second and its unit: bytes where the arithmetic is little next to them, else operations."""
        moved, operations = self.cost.weight_bytes + self.cost.kv_bytes, self.cost.flops
        if not moved and not operations:
            moved = self.cost.activation_bytes
        few = operations < 50 * moved
        return ((moved if few else operations) / self.seconds if self.seconds else 0.0), "B/s" if few else "op/s"


def by_kind(program: Program, shape: StepShape, times: Iterable[tuple[Op, float]], ceiling: Ceiling) -> list[KindTime]:
    """Op times of one step of ``shape`` (or any average of several), summed by kind in the order of first use.

    The ops are those that a runner records for ``program``.
    """
    program = legalize(program)
    found: dict[str, KindTime] = {}
    for op, seconds in times:
        cost, name = op.cost(program, shape), kind(op)
        before = found.get(name, KindTime(name, 0, 0.0, Cost(), 0.0))
        found[name] = KindTime(
            name, before.count + 1, before.seconds + seconds, before.cost + cost, before.limit + ceiling.limit(cost)
        )
    return list(found.values())
