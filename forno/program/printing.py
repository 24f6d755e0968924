"""A program as a person or a script reads it: ops with shapes and costs, repeated layers once. Knows no model by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from forno.program import ops
from forno.program.ops import Op
from forno.program.program import Program
from forno.program.shape import Cost, StepShape

_LAYER = re.compile(r"^(?:model\.layers\.)?(\d+)\.")


@dataclass(frozen=True, slots=True)
class Section:
    """Consecutive ops that belong to no layer, or one layer that stands for all that are like it."""

    layers: tuple[int, ...]
    """Empty: not a layer."""
    ops: tuple[Op, ...]

    @property
    def title(self) -> str:
        return f"layers {_ranges(self.layers)}" if len(self.layers) > 1 else f"layer {self.layers[0]}"


def sections(program: Program) -> list[Section]:
    """The program in order; layers whose ops, shapes and formats agree are folded into the first of them."""
    runs: list[tuple[int | None, list[Op]]] = []
    for op in program.ops:
        layer = _layer_of(op)
        if not runs or runs[-1][0] != layer:
            runs.append((layer, []))
        runs[-1][1].append(op)
    folded: dict[Any, tuple[list[int], tuple[Op, ...]]] = {}
    for i, (layer, run) in enumerate(runs):
        key = ("outside", i) if layer is None else tuple(_signature(program, op, layer) for op in run)
        folded.setdefault(key, ([], tuple(run)))[0].extend([] if layer is None else [layer])
    return [Section(tuple(layers), run) for layers, run in folded.values()]


def format_program(program: Program, shape: StepShape) -> str:
    """The program as aligned text, with the cost of each op for one step of ``shape``."""
    table: list[tuple[str, ...]] = [("value", "op", "reads", "shape", "type", "FLOP", "weights", "KV", "activations")]
    titles: dict[int, str] = {}
    for section in sections(program):
        if section.layers:
            titles[len(table)] = f"{section.title}{f'  (x {len(section.layers)})' if len(section.layers) > 1 else ''}"
        elif len(table) > 1:
            titles[len(table)] = ""
        table += [_line(program, op, shape, section.layers[0] if section.layers else None) for op in section.ops]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = []
    for i, row in enumerate(table):
        if i in titles:
            lines.append(titles[i])
        cells = [c.ljust(w) if j < 5 else c.rjust(w) for j, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def format_counts(program: Program) -> str:
    """How many ops there are, by kind, most frequent first."""
    counts = Counter(type(op).__name__ for op in program.ops)
    return f"{len(program.ops)} ops: " + ", ".join(f"{n} {name}" for name, n in counts.most_common())


def format_totals(cost: Cost) -> str:
    """One step's work in a line: FLOPs by unit, bytes by kind, and their ratio."""
    units = ", ".join(f"{unit} {quantity(getattr(cost, unit))}" for unit in ("int8", "bf16", "fp32") if getattr(cost, unit))
    kinds = ", ".join(
        f"{kind} {quantity(getattr(cost, f'{kind.lower()}_bytes'))}B"
        for kind in ("weight", "KV", "activation")
        if getattr(cost, f"{kind.lower()}_bytes")
    )
    intensity = cost.flops / cost.bytes if cost.bytes else 0.0
    return (
        f"{quantity(cost.flops)}FLOP ({units}), {quantity(cost.bytes)}B ({kinds}), arithmetic intensity {intensity:.2f} FLOP/B"
    )


def describe(program: Program, shape: StepShape) -> dict[str, Any]:
    """The same for scripts: every op with its fields, its values' shapes and its cost. JSON-ready."""
    return {
        "ops": [
            {
                "op": type(op).__name__,
                **{f.name: getattr(op, f.name) for f in fields(op)},
                "shapes": {n: [program.values[n].axis.value, program.values[n].width] for n in op.outputs},
                "types": {n: program.values[n].dtype for n in op.outputs},
                "cost": _cost(op.cost(program, shape)),
            }
            for op in program.ops
        ],
        "passes": list(program.passes),
        "total": _cost(program.cost(shape)),
    }


def quantity(x: float) -> str:
    """Three significant digits and a decimal prefix, ready for a unit: ``1.23 G``."""
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if x >= 0.9995 * 10**power:
            return f"{_three(x / 10**power)} {prefix}"
    return f"{x:.0f} " if x == int(x) else f"{_three(x)} "


def _three(x: float) -> str:
    return f"{x:.0f}" if x >= 99.95 else f"{x:.1f}" if x >= 9.995 else f"{x:.2f}"


def _cost(cost: Cost) -> dict[str, float]:
    return {f.name: getattr(cost, f.name) for f in fields(cost)}


def _layer_of(op: Op) -> int | None:
    """The layer whose value or cache the op writes."""
    for name in (*op.outputs, getattr(op, "cache", "")):
        if match := _LAYER.match(name):
            return int(match[1])
    return None


def _local(name: str, layer: int | None) -> str:
    """A name without its own layer's number; names from elsewhere stay whole."""
    match = _LAYER.match(name)
    return name[match.end() :] if match and int(match[1]) == layer else name


def _signature(program: Program, op: Op, layer: int) -> tuple[Any, ...]:
    """Equal for ops of two layers that differ in nothing but the layer and what they are fed."""
    inputs = tuple(_local(n, layer) if _local(n, layer) != n else "" for n in op.inputs)
    outputs = tuple(
        (_local(n, layer), program.values[n].width, program.values[n].dtype, program.values[n].axis) for n in op.outputs
    )
    weights = tuple((_local(n, layer), program.weights[n]) for n in op.weight_names)
    constants = tuple(getattr(op, f.name) for f in fields(op) if not isinstance(getattr(op, f.name), (str, tuple)))
    return type(op).__name__, inputs, outputs, weights, constants


def _line(program: Program, op: Op, shape: StepShape, layer: int | None) -> tuple[str, ...]:
    cost = op.cost(program, shape)
    outs = [program.values[n] for n in op.outputs]
    return (
        " ".join(_local(v.name, layer) for v in outs) or f"-> {_local(getattr(op, 'cache', ''), layer)}",
        _title(op),
        ", ".join(_operands(program, op, layer)),
        f"{outs[0].axis.value} x {'|'.join(str(v.width) for v in outs)}" if outs else "",
        outs[0].dtype if outs else "",
        *(quantity(x).strip() if x else "-" for x in (cost.flops, cost.weight_bytes, cost.kv_bytes, cost.activation_bytes)),
    )


def _title(op: Op) -> str:
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(op).__name__).lower()
    if isinstance(op, ops.Linear):
        extras = [op.activation, "residual" if op.residual else None, "bias" if any(op.biases) else None]
        return " + ".join([name, *(e for e in extras if e)])
    if isinstance(op, ops.QkvPrepare):
        return f"{name} + norm" if op.weight_names else name
    if isinstance(op, ops.Attention):
        name = f"materialized {name}" if op.materialized else name
        return f"{name} {op.heads}/{op.kv_heads} x {op.head_dim}" + (f", window {op.window}" if op.window else "")
    return name


def _operands(program: Program, op: Op, layer: int | None) -> Iterable[str]:
    """The values an op reads, then its cache, and its matrices by format: ``qkv x 3 q4_1``."""
    yield from (_local(n, layer) for n in op.inputs)
    if isinstance(op, ops.Attention):
        yield f"{_local(op.cache, layer)} {program.caches[op.cache].dtype}"
    matrices = [program.weights[n] for n in op.weight_names if len(program.weights[n].shape) > 1]
    for form, count in Counter(m.format for m in matrices).items():
        yield f"{form} weights" + (f" x {count}" if count > 1 else "")


def _ranges(numbers: Sequence[int]) -> str:
    """``0-3, 6`` for 0, 1, 2, 3, 6."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][1] + 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
