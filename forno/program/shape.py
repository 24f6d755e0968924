"""Symbolic sizes and the concrete step they are evaluated for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Axis(StrEnum):
    """The two leading dimensions a value can have."""

    ROWS = "rows"
    """One per token in the step."""
    OUTPUTS = "outputs"
    """One per position whose logits are needed."""


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a step: ``num_tokens`` tokens after ``start`` cached ones."""

    start: int
    num_tokens: int

    @property
    def context(self) -> int:
        """Tokens in the cache after the step."""
        return self.start + self.num_tokens

    @property
    def attended(self) -> int:
        """Sum over this span's tokens of the keys each may see (causal)."""
        return self.num_tokens * self.start + self.num_tokens * (self.num_tokens + 1) // 2

    def attended_within(self, window: int) -> int:
        """``attended`` when a token sees its last ``window`` keys only (0: all of them)."""
        if not window:
            return self.attended
        growing = min(max(window - self.start, 0), self.num_tokens)  # tokens whose whole past fits the window
        return Span(self.start, growing).attended + (self.num_tokens - growing) * window

    def read_within(self, window: int) -> int:
        """Cached tokens that at least one of this span's tokens sees."""
        return min(self.context, window + self.num_tokens - 1) if window else self.context


@dataclass(frozen=True, slots=True)
class StepShape:
    """The sizes of one step: enough to evaluate every op's cost."""

    spans: tuple[Span, ...]
    outputs: int

    @property
    def rows(self) -> int:
        return sum(span.num_tokens for span in self.spans)

    def size(self, axis: Axis) -> int:
        return self.rows if axis is Axis.ROWS else self.outputs

    @classmethod
    def decode(cls, batch: int, context: int) -> StepShape:
        """``batch`` sequences that each compute one token after ``context`` cached ones."""
        return cls((Span(context, 1),) * batch, batch)

    @classmethod
    def prefill(cls, tokens: int, start: int = 0) -> StepShape:
        """One prompt of ``tokens`` tokens after ``start`` cached ones."""
        return cls((Span(start, tokens),), 1)


def value_row_bytes(width: int, dtype: str) -> float:
    """Bytes of one row of a value: scales and sums included, padding not."""
    if dtype == "s8_row":
        return width + 4.0 + 4.0
    return width * {"f32": 4.0, "i32": 4.0, "bf16": 2.0, "s8": 1 + (4 + 4) / 32}[dtype]


@dataclass(frozen=True, slots=True)
class Value:
    """A named 2-D value: ``[size(axis), width]``."""

    name: str
    axis: Axis
    width: int
    dtype: str = "f32"
    """``f32``; ``bf16``; ``s8``: int8 in groups of 32 with an fp32 scale and an int32 sum each; ``s8_row``: int8 with one
    scale and sum per row; ``i32``."""

    @property
    def bytes_per_row(self) -> float:
        return value_row_bytes(self.width, self.dtype)


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one op or program. FLOPs count a multiply-add as two; bytes are the least that must move."""

    int8: float = 0.0
    bf16: float = 0.0
    fp32: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    activation_bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f) + getattr(other, f) for f in self.__slots__))

    @property
    def flops(self) -> float:
        return self.int8 + self.bf16 + self.fp32

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes
