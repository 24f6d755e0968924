"""``ProgramBuilder``: the words in which an architecture is written down. One method per op, plus layer naming."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from forno.program import ops
from forno.program.ops import Op, RopeSpec
from forno.program.program import CacheSpec, Program, WeightSpec
from forno.program.shape import Axis, Value


@dataclass(slots=True)
class ProgramBuilder:
    """Collects ops. Weight names are relative to the current layer's prefix while ``layers`` iterates."""

    name: str
    vocab_size: int
    max_positions: int
    dtype: str = "bf16"
    """Default format of weights, a key of FORMATS."""
    _ops: list[Op] = field(default_factory=list)
    _values: dict[str, Value] = field(default_factory=dict)
    _weights: dict[str, WeightSpec] = field(default_factory=dict)
    _caches: dict[str, CacheSpec] = field(default_factory=dict)
    _ropes: dict[str, RopeSpec] = field(default_factory=dict)
    _prefix: str = "model."
    _scope: str = ""

    def layers(self, count: int) -> Iterator[int]:
        """Yield 0 .. count - 1 with weight names prefixed ``model.layers.{i}.``."""
        for i in range(count):
            self._prefix, self._scope = f"model.layers.{i}.", f"{i}."
            yield i
        self._prefix, self._scope = "model.", ""

    def _value(self, name: str, axis: Axis, width: int, dtype: str = "f32") -> Value:
        base = self._scope + name
        unique, n = base, 1
        while unique in self._values:
            n += 1
            unique = f"{base}.{n}"
        value = Value(unique, axis, width, dtype)
        self._values[unique] = value
        return value

    def _weight(self, name: str, shape: tuple[int, ...], *, absolute: bool = False, dtype: str | None = None) -> str:
        full = name if absolute else self._prefix + name
        spec = WeightSpec(shape, dtype or self.dtype)
        assert self._weights.setdefault(full, spec).shape == shape, f"{full} used with two shapes"
        return full

    def _emit(self, op: Op, out: Value) -> Value:
        self._ops.append(op)
        return out

    def embed(self, weight: str, width: int) -> Value:
        out = self._value("embedding", Axis.ROWS, width)
        return self._emit(ops.Embed(out.name, self._weight(weight + ".weight", (self.vocab_size, width))), out)

    def rms_norm(self, x: Value, weight: str, eps: float, *, group: int = 0) -> Value:
        out = self._value(weight.rsplit(".", 1)[-1], x.axis, x.width)
        name = self._weight(weight + ".weight", (group or x.width,), dtype="f32")
        return self._emit(ops.RmsNorm(out.name, x.name, name, eps, group), out)

    def linear(self, x: Value, weight: str, width: int, *, bias: bool = False, absolute: bool = False, out: str = "") -> Value:
        """``absolute``: ``weight`` is a full name. ``out`` names the result; default: the weight's last part."""
        value = self._value(out or weight.rsplit(".", 1)[-1], x.axis, width)
        name = self._weight(weight + ".weight", (width, x.width), absolute=absolute)
        b = self._weight(weight + ".bias", (width,), absolute=absolute, dtype="f32") if bias else None
        return self._emit(ops.Linear(value.name, x.name, (name,), (b,)), value)

    def rope(self, x: Value, heads: int, head_dim: int, spec: RopeSpec, key: str = "default") -> Value:
        assert self._ropes.setdefault(key, spec) == spec, f"rope {key} defined twice"
        out = self._value(x.name.removeprefix(self._scope) + ".rope", x.axis, x.width)
        return self._emit(ops.Rope(out.name, x.name, heads, head_dim, key), out)

    def paged_kv(self, kv_heads: int, head_dim: int) -> str:
        """Declare this layer's paged cache; returns its name."""
        name = f"{self._scope}kv"
        self._caches[name] = CacheSpec("paged", kv_heads, head_dim, head_dim)
        return name

    def attention(self, q: Value, k: Value, v: Value, *, cache: str, heads: int, scale: float, window: int = 0) -> Value:
        """Write k and v to ``cache``, then attend from q."""
        spec = self._caches[cache]
        self._ops.append(ops.KvWrite(k.name, v.name, cache))
        out = self._value("attention", q.axis, heads * spec.v_dim)
        op = ops.Attention(out.name, q.name, cache, heads, spec.kv_heads, spec.k_dim, scale, window)
        return self._emit(op, out)

    def add(self, a: Value, b: Value) -> Value:
        out = self._value("residual", a.axis, a.width)
        return self._emit(ops.Add(out.name, a.name, b.name), out)

    def silu_mul(self, gate: Value, up: Value) -> Value:
        out = self._value("silu_mul", gate.axis, gate.width)
        return self._emit(ops.SiluMul(out.name, gate.name, up.name), out)

    def last_rows(self, x: Value) -> Value:
        out = self._value("last_rows", Axis.OUTPUTS, x.width)
        return self._emit(ops.GatherRows(out.name, x.name), out)

    def finish(self, logits: Value) -> Program:
        """Sample from ``logits`` and return the checked program."""
        out = self._value("sampled", Axis.OUTPUTS, 1, "i32")
        self._emit(ops.Sample(out.name, logits.name), out)
        program = Program(
            self.name,
            tuple(self._ops),
            self._values,
            self._weights,
            self._caches,
            self._ropes,
            self.vocab_size,
            self.max_positions,
        )
        program.check_integrity()
        return program
