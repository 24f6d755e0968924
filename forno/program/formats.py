"""Weight formats by name: how many bits a weight takes and which arithmetic unit multiplies it.

A format is the *file's* precision, kept as it is in memory; nothing is requantized silently.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightFormat:
    name: str
    bits: float
    """Bits per weight, scales included (of w8a8, but for the one per output)."""
    block: int
    """Weights along K that share a scale or, where an output's all do, that are packed together; K must be a multiple of it
    (1: no constraint)."""
    activation: str
    """dtype its linear wants its input in: ``s8``, ``s8_row``, ``bf16`` or ``f32``."""

    @property
    def unit(self) -> str:
        """The arithmetic unit that does the work: ``int8``, ``bf16`` or ``fp32``."""
        return {"s8": "int8", "s8_row": "int8", "bf16": "bf16", "f32": "fp32"}[self.activation]


FORMATS = {
    f.name: f
    for f in (
        WeightFormat("f32", 32.0, 1, "f32"),
        WeightFormat("f16", 16.0, 1, "f32"),
        WeightFormat("bf16", 16.0, 1, "bf16"),
        WeightFormat("q8_0", 8.5, 32, "s8"),
        WeightFormat("q4_0", 4.5, 32, "s8"),
        WeightFormat("q4_1", 5.0, 32, "s8"),
        WeightFormat("q5_0", 5.5, 32, "s8"),
        WeightFormat("q5_1", 6.0, 32, "s8"),
        WeightFormat("q4_k", 4.5, 256, "s8"),
        WeightFormat("q5_k", 5.5, 256, "s8"),
        WeightFormat("q6_k", 6.5625, 256, "s8"),
        WeightFormat("iq4_nl", 4.5, 32, "s8"),
        WeightFormat("w8a8", 8.0, 32, "s8_row"),
    )
}
