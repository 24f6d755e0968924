"""Op times of a step held against what the machine and the program's own costs allow.

Knows no engine and measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forno.kernels.cpu.buffers import legalize
from forno.program.ceiling import Ceiling
from forno.program.cost_model import kind
from forno.program.ops import Op
from forno.program.program import Program
from forno.program.shape import Cost, StepShape


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
