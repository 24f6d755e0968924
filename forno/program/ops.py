"""The op vocabulary. Each op is a frozen record of value names, weight names and constants, and knows its cost.

Field conventions, on which every walker relies: ``inputs`` and ``outputs`` are value names, ``weight_names`` are
names in ``Program.weights``, ``cache`` and ``rope`` are keys of ``Program.caches`` and ``Program.ropes``.
Every op computes in fp32 and its result is then converted to the output value's ``dtype``, as ``Quantize`` says.
``kernels/reference`` defines what each op computes; other backends are held against it.

A fused op costs the same FLOPs as the ops it replaces and moves fewer bytes: fusion saves traffic, never work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forno.program.shape import Cost, StepShape

if TYPE_CHECKING:
    from forno.program.program import Program


@dataclass(frozen=True, slots=True)
class Op:
    """Base: what every op can be asked. Most read one value ``x`` and write one value ``out``."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.x,)  # type: ignore[attr-defined]

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.out,)  # type: ignore[attr-defined]

    @property
    def weight_names(self) -> tuple[str, ...]:
        return ()

    def cost(self, program: Program, shape: StepShape) -> Cost:
        """Work for one step of ``shape``. Default: elementwise, one fp32 FLOP per output element."""
        return Cost(fp32=_elements(program, self.outputs, shape), activation_bytes=_activation_bytes(self, program, shape))


def _conversions(program: Program, name: str, shape: StepShape) -> float:
    """fp32 FLOPs of converting an op's own output on the way out: what a ``Quantize`` behind it would cost."""
    return _elements(program, (name,), shape) if program.values[name].dtype in ("s8", "s8_row", "bf16") else 0.0


def _elements(program: Program, names: tuple[str, ...], shape: StepShape) -> float:
    return float(sum(shape.size(program.values[n].axis) * program.values[n].width for n in names))


def _activation_bytes(op: Op, program: Program, shape: StepShape) -> float:
    known = [program.values[n] for n in op.inputs + op.outputs if n in program.values]
    given = len(op.inputs) + len(op.outputs) - len(known)  # token_ids, positions: int32 per row
    return float(sum(shape.size(v.axis) * v.bytes_per_row for v in known) + 4 * given * shape.rows)


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """``out[r] = weight[token_ids[r]]`` as f32."""

    out: str
    weight: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("token_ids",)

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (self.weight,)

    def cost(self, program: Program, shape: StepShape) -> Cost:
        spec = program.weights[self.weight]
        read = shape.rows * spec.shape[1] * spec.bits / 8
        return Cost(weight_bytes=read, activation_bytes=_activation_bytes(self, program, shape))


@dataclass(frozen=True, slots=True)
class RmsNorm(Op):
    """``out = x / sqrt(mean(x**2) + eps) * weight`` over each group of ``group`` columns (0: all of them).

    ``group`` is the head size for q/k norms; ``weight`` then has that length and serves every head.
    After the pass ``norm_quantize`` the output is ``s8``, ``s8_row`` or ``bf16``.
    """

    out: str
    x: str
    weight: str
    eps: float
    group: int = 0

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (self.weight,)

    def cost(self, program: Program, shape: StepShape) -> Cost:
        return Cost(
            fp32=4 * _elements(program, (self.out,), shape) + _conversions(program, self.out, shape),
            weight_bytes=program.weights[self.weight].bytes,
            activation_bytes=_activation_bytes(self, program, shape),
        )


@dataclass(frozen=True, slots=True)
class Quantize(Op):
    """Change the type of activations to what a linear's weights want; the type is the output value's ``dtype``.

    ``s8``: per group of 32 columns, ``scale = amax / 127`` (fp32), ``q = round_half_even(x / scale)``
    computed as ``x * (127 / amax)``, 0 where ``amax`` is 0. ``s8_row``: the same with all columns in one group.
    ``bf16``: round to nearest even.
    """

    out: str
    x: str


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """``out = x @ concat(weights).T + bias``, then an optional activation, then an optional residual.

    ``weights`` are ``[n_i, k]`` and their outputs lie side by side. With ``activation == "silu_mul"`` there are two
    weights of equal shape, gate and up, and ``out = silu(gate) * up`` has width ``n``. ``residual`` is an f32 value
    added to the result; it may be overwritten by it. The output's ``dtype`` may be ``s8`` or ``bf16`` after fusion.
    """

    out: str
    x: str
    weights: tuple[str, ...]
    biases: tuple[str | None, ...]
    residual: str | None = None
    activation: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.x,) if self.residual is None else (self.x, self.residual)

    @property
    def weight_names(self) -> tuple[str, ...]:
        return self.weights + tuple(b for b in self.biases if b is not None)

    def cost(self, program: Program, shape: StepShape) -> Cost:
        rows = shape.size(program.values[self.x].axis)
        work: dict[str, float] = {}
        for name in self.weights:
            spec = program.weights[name]
            work[spec.unit] = work.get(spec.unit, 0.0) + 2.0 * rows * spec.shape[0] * spec.shape[1]
        adds = rows * sum(program.weights[b].shape[0] for b in self.biases if b is not None)
        per_element = (5 if self.activation else 0) + (1 if self.residual else 0)
        epilogue = adds + per_element * _elements(program, (self.out,), shape) + _conversions(program, self.out, shape)
        work["fp32"] = work.get("fp32", 0.0) + epilogue
        weight_bytes = sum(program.weights[n].bytes for n in self.weight_names)
        return Cost(**work, weight_bytes=weight_bytes, activation_bytes=_activation_bytes(self, program, shape))


@dataclass(frozen=True, slots=True)
class Split(Op):
    """Names for column ranges of ``x``, side by side, in order. A view: costs nothing, moves nothing."""

    outs: tuple[str, ...]
    x: str

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.outs

    def cost(self, program: Program, shape: StepShape) -> Cost:
        return Cost()


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding: for pair ``i`` of a head (elements ``i`` and ``i + dim/2``), angle = position * inv_freq[i].

    Sources: RoFormer (2104.09864); scaling as Hugging Face's ``rope_type`` linear and llama3 define it.
    """

    dim: int
    """Leading columns of each head that are rotated; even."""
    inv_freq: tuple[float, ...]
    """``dim / 2`` frequencies in radians per position, scaling already applied."""
    attention_factor: float = 1.0
    """Multiplies cos and sin (YaRN-style scalings)."""


@dataclass(frozen=True, slots=True)
class Rope(Op):
    """Rotate each head of ``x`` (``heads`` x ``head_dim`` columns) by the rows' positions."""

    out: str
    x: str
    heads: int
    head_dim: int
    rope: str
    """Key in ``Program.ropes``."""

    def cost(self, program: Program, shape: StepShape) -> Cost:
        return Cost(fp32=3 * _elements(program, (self.out,), shape), activation_bytes=_activation_bytes(self, program, shape))


@dataclass(frozen=True, slots=True)
class KvWrite(Op):
    """Store this step's keys and values at the rows' positions in ``cache``, converted to the cache's type."""

    k: str
    v: str
    cache: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.k, self.v)

    @property
    def outputs(self) -> tuple[str, ...]:
        return ()

    def cost(self, program: Program, shape: StepShape) -> Cost:
        return Cost(
            kv_bytes=shape.rows * program.caches[self.cache].bytes_per_token,
            activation_bytes=_activation_bytes(self, program, shape),
        )


@dataclass(frozen=True, slots=True)
class QkvPrepare(Op):
    """Fused: optional q/k norm, rope on q and k, write k and v to ``cache``; ``out`` is the rotated q.

    ``x`` holds q, k and v side by side. Made by the pass ``qkv_prepare``; equal to the ops it replaces.
    """

    out: str
    x: str
    cache: str
    heads: int
    kv_heads: int
    head_dim: int
    rope: str
    q_norm: str | None = None
    k_norm: str | None = None
    eps: float = 0.0

    @property
    def weight_names(self) -> tuple[str, ...]:
        return tuple(n for n in (self.q_norm, self.k_norm) if n is not None)

    def cost(self, program: Program, shape: StepShape) -> Cost:
        width = self.heads * (7 if self.q_norm else 3) + self.kv_heads * (7 if self.k_norm else 3)
        return Cost(
            fp32=float(shape.rows * width * self.head_dim),
            weight_bytes=sum(program.weights[n].bytes for n in self.weight_names),
            kv_bytes=shape.rows * program.caches[self.cache].bytes_per_token,
            activation_bytes=_activation_bytes(self, program, shape),
        )


@dataclass(frozen=True, slots=True)
class Attention(Op):
    """Causal softmax attention of ``q`` over ``cache``, which already holds this step's keys and values.

    Query head ``h`` reads key/value head ``h // (heads / kv_heads)``. ``window`` limits a position to the last
    ``window`` keys, itself included (0: no limit). ``softcap`` > 0 bounds scores as ``cap * tanh(score / cap)``.
    ``materialized``: the score matrix is written, read and written by the softmax, and read for the product with V: 16 bytes
    of traffic for every row, head and key of the context, masked or not. The result and the FLOPs are the same.
    """

    out: str
    q: str
    cache: str
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    materialized: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.q,)

    def cost(self, program: Program, shape: StepShape) -> Cost:
        cache = program.caches[self.cache]
        pairs = sum(span.attended_within(self.window) for span in shape.spans)
        work = {"fp32": _conversions(program, self.out, shape)}
        unit = "fp32" if cache.dtype == "float32" else "bf16"
        work[unit] = work.get(unit, 0.0) + 4.0 * pairs * self.heads * self.head_dim
        read = sum(span.read_within(self.window) for span in shape.spans) * cache.bytes_per_token
        scores = 4 * 4 * self.heads * sum(span.num_tokens * span.context for span in shape.spans) if self.materialized else 0
        return Cost(**work, kv_bytes=read, activation_bytes=_activation_bytes(self, program, shape) + scores)


@dataclass(frozen=True, slots=True)
class Add(Op):
    """``out = a + b``."""

    out: str
    a: str
    b: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.a, self.b)


@dataclass(frozen=True, slots=True)
class SiluMul(Op):
    """``out = gate / (1 + exp(-gate)) * up``."""

    out: str
    gate: str
    up: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.gate, self.up)

    def cost(self, program: Program, shape: StepShape) -> Cost:
        flops = 5 * _elements(program, (self.out,), shape) + _conversions(program, self.out, shape)
        return Cost(fp32=flops, activation_bytes=_activation_bytes(self, program, shape))


@dataclass(frozen=True, slots=True)
class GatherRows(Op):
    """Keep only the rows whose logits are needed, in the step's output order."""

    out: str
    x: str

    def cost(self, program: Program, shape: StepShape) -> Cost:
        return Cost(activation_bytes=2 * shape.outputs * program.values[self.out].bytes_per_row)


@dataclass(frozen=True, slots=True)
class Sample(Op):
    """Turn ``logits`` into one token per output row (and log-probabilities where asked), by each request's parameters."""

    out: str
    logits: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.logits,)

    def cost(self, program: Program, shape: StepShape) -> Cost:
        return Cost(fp32=_elements(program, (self.logits,), shape), activation_bytes=_activation_bytes(self, program, shape))


@dataclass(frozen=True, slots=True)
class SampleHead(Op):
    """Fused head: ``Sample(Linear(x, weight))`` in slices of rows, so that logits never exist for all rows at once."""

    out: str
    x: str
    weight: str
    bias: str | None = None

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def cost(self, program: Program, shape: StepShape) -> Cost:
        linear = Linear(self.out, self.x, (self.weight,), (self.bias,)).cost(program, shape)
        return linear + Cost(fp32=float(shape.outputs * program.weights[self.weight].shape[0]))
