"""``Program``: what one step computes, as a flat list of ops on named values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from forno.errors import CheckpointError, UnsupportedError
from forno.program.check import check_program
from forno.program.formats import FORMATS
from forno.program.ops import Attention, Op, RopeSpec
from forno.program.shape import Cost, StepShape, Value


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """What a loader must bind: shape as in Hugging Face (linear weights are ``[out, in]``) and how it is held."""

    shape: tuple[int, ...]
    format: str = "bf16"
    """A key of ``forno.program.formats.FORMATS``. From a bare config it is the config's dtype."""

    def held_as(self, name: str, format: str) -> WeightSpec:
        """This weight (called ``name`` in messages) in another format; vectors keep theirs."""
        if len(self.shape) < 2:
            return self
        if format not in FORMATS:
            raise UnsupportedError(f"{name} is held as {format!r}; supported formats are {', '.join(FORMATS)}")
        if self.shape[-1] % FORMATS[format].block:
            raise CheckpointError(
                f"{name} has rows of {self.shape[-1]} weights, not a multiple of the {FORMATS[format].block} that "
                f"{format} puts in a block"
            )
        return replace(self, format=format)

    @property
    def bits(self) -> float:
        return FORMATS[self.format].bits

    @property
    def unit(self) -> str:
        return FORMATS[self.format].unit

    @property
    def elements(self) -> int:
        n = 1
        for dim in self.shape:
            n *= dim
        return n

    @property
    def bytes(self) -> float:
        return self.elements * self.bits / 8


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """One layer's cache. The block pool is built from these, so new kinds need no new cache code above the runner."""

    kind: str
    """``paged``: keys and values of every position. (``window`` and ``state`` are for other architectures.)"""
    kv_heads: int
    k_dim: int
    v_dim: int
    dtype: str = "bf16"
    """``bf16``, ``int8`` (a bf16 scale for every 32 values of a token's key or value in a head) or ``float32``."""

    @property
    def bytes_per_token(self) -> int:
        width = {"bf16": 2, "int8": 1, "float32": 4}[self.dtype]
        scales = 2 * (-(-self.k_dim // 32) + -(-self.v_dim // 32)) if self.dtype == "int8" else 0
        return self.kv_heads * ((self.k_dim + self.v_dim) * width + scales)


@dataclass(frozen=True, slots=True)
class Program:
    """A flat, ordered list of ops. Immutable: passes return new programs."""

    name: str
    ops: tuple[Op, ...]
    values: Mapping[str, Value]
    weights: Mapping[str, WeightSpec]
    caches: Mapping[str, CacheSpec]
    ropes: Mapping[str, RopeSpec] = field(default_factory=dict)
    vocab_size: int = 0
    max_positions: int = 0
    """Longest sequence the model was made for."""
    passes: tuple[str, ...] = ()
    """Names of the passes already applied, in order."""

    def cost(self, shape: StepShape) -> Cost:
        """Total work of one step."""
        total = Cost()
        for op in self.ops:
            total = total + op.cost(self, shape)
        return total

    @property
    def kv_bytes_per_token(self) -> int:
        return sum(c.bytes_per_token for c in self.caches.values() if c.kind == "paged")

    @property
    def weight_bytes(self) -> float:
        return sum(w.bytes for w in self.weights.values())

    def with_formats(self, formats: Mapping[str, str]) -> Program:
        """The same program with the matrices held as ``formats`` says (missing names keep theirs).

        Vectors (norms, biases) stay f32 whatever the file holds: they are few, and every kernel reads them so.
        Raises ``CheckpointError`` where a format's blocks do not divide a matrix's rows. Call it before any pass.
        """
        weights = {n: w.held_as(n, formats.get(n, w.format)) for n, w in self.weights.items()}
        return replace(self, weights=weights)

    def with_kv_dtype(self, dtype: str) -> Program:
        """The same program with its paged caches held as ``dtype``."""
        return replace(self, caches={n: replace(c, dtype=dtype) for n, c in self.caches.items()})

    def with_materialized_attention(self) -> Program:
        """The same program with its score matrices in memory: the same values for more traffic."""
        return replace(self, ops=tuple(replace(op, materialized=True) if isinstance(op, Attention) else op for op in self.ops))

    def check_integrity(self) -> None:
        """Every name is declared, defined once and before its use, and every shape fits; raises AssertionError."""
        check_program(self)
