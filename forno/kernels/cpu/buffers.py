"""Where each value of a program lies: liveness-based reuse of one activation arena. Plans bytes; computes nothing.

Values that are views of another (``Split``), or may overwrite it (a residual read for the last time), share its storage.
Storages whose lives do not overlap share bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from forno.program import ops
from forno.program.program import Program
from forno.program.shape import Value, value_row_bytes

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""
DTYPES = {"f32": 0, "bf16": 1, "s8": 2, "i32": 3, "s8_row": 4}
"""DType in types.hpp."""

ViewSpec = tuple[int, int, int, int]
"""Offset in the arena and row stride in bytes, columns, type: what the executor's ``add_*`` methods take."""


@dataclass(frozen=True, slots=True)
class Buffers:
    views: Mapping[str, ViewSpec]
    """By value name; a fused head's logits are under ``logits_of(op)``."""
    bytes: int
    """Size of the arena."""


@dataclass(slots=True)
class _Storage:
    """Bytes that one or more values share, alive from op ``first`` to op ``last``."""

    width: int
    dtype: str
    rows: int
    first: int
    last: int
    offset: int = 0

    @property
    def stride(self) -> int:
        return row_stride(self.width, self.dtype)

    @property
    def bytes(self) -> int:
        return self.stride * self.rows


def row_stride(width: int, dtype: str) -> int:
    """Bytes from one row to the next: whole cache lines, and never a distance at which rows evict each other."""
    stride = -(-int(value_row_bytes(width, dtype)) // ALIGNMENT) * ALIGNMENT
    return stride + ALIGNMENT if stride % 1024 == 0 else stride


def logits_of(op: ops.SampleHead) -> str:
    """The name under which the slice of logits of a fused head is planned."""
    return op.out + ".logits"


def plan_buffers(program: Program, max_rows: int, head_slice: int) -> Buffers:
    """Place every value for steps of up to ``max_rows`` rows (and as many output rows)."""
    last = _last_uses(program)
    storages: dict[str, _Storage] = {}
    columns: dict[str, int] = {}  # first column within the storage
    for i, op in enumerate(program.ops):
        if isinstance(op, ops.Split):
            column = columns[op.x]
            for name in op.outs:
                storages[name], columns[name] = storages[op.x], column
                column += program.values[name].width
        elif isinstance(op, ops.SampleHead):
            width = program.weights[op.weight].shape[0]
            storages[logits_of(op)] = _Storage(width, "f32", min(head_slice, max_rows), i, i)
            columns[logits_of(op)] = 0
        elif not isinstance(op, ops.Sample):
            for name in op.outputs:
                storages[name] = _storage_for(program, op, i, name, last, storages, columns, max_rows)
                columns[name] = 0
    total = _place(list({id(s): s for s in storages.values()}.values()))
    widths = {name: value.width for name, value in program.values.items()}
    views = {
        name: (s.offset + 4 * columns[name], s.stride, widths.get(name, s.width), DTYPES[s.dtype])
        for name, s in storages.items()
    }
    return Buffers(views, total)


def _last_uses(program: Program) -> dict[str, int]:
    """Index of the op after which a value's bytes are free. A value lives as long as its columns' own names."""
    last: dict[str, int] = {}
    for i, op in reversed(list(enumerate(program.ops))):
        for name in op.outputs:
            last.setdefault(name, i)
        for name in op.inputs:
            last.setdefault(name, i)
        if isinstance(op, ops.Split):
            last[op.x] = max(last[op.x], *(last[name] for name in op.outs))
    return last


def _storage_for(
    program: Program,
    op: ops.Op,
    index: int,
    name: str,
    last: Mapping[str, int],
    storages: Mapping[str, _Storage],
    columns: Mapping[str, int],
    max_rows: int,
) -> _Storage:
    """New storage for ``name``, or that of an input of ``op`` which dies here and may be overwritten."""
    value = program.values[name]
    for source in _overwritable(op):
        storage = storages[source]
        dies = storage.last == index and storage.width == value.width and columns[source] == 0
        read_whole = isinstance(op, ops.Linear) and storages[op.x] is storage  # a linear reads whole rows of x
        if dies and not read_whole and storage.dtype == value.dtype:
            storage.last = last[name]
            return storage
    return _Storage(value.width, value.dtype, max_rows, index, last[name])


def _overwritable(op: ops.Op) -> tuple[str, ...]:
    """Inputs whose element an op reads before it writes the same element of its output."""
    if isinstance(op, ops.Linear) and op.residual is not None:
        return (op.residual,)
    return (op.a, op.b) if isinstance(op, ops.Add) else ()


def _place(storages: list[_Storage]) -> int:
    """Give every storage the lowest offset at which nothing alive at the same time lies; largest first."""
    placed: list[_Storage] = []
    for storage in sorted(storages, key=lambda s: (-s.bytes, s.first)):
        storage.offset = 0
        rivals = [p for p in placed if p.first <= storage.last and storage.first <= p.last]
        for rival in sorted(rivals, key=lambda p: p.offset):
            if storage.offset + storage.bytes <= rival.offset:
                break
            storage.offset = max(storage.offset, rival.offset + rival.bytes)
        placed.append(storage)
    return max((s.offset + s.bytes for s in storages), default=0)


def legalize(program: Program) -> Program:
    """Give a value of its own to each type conversion that the kernels cannot fold: attention writes ``s8`` only where
    a group of 32 columns lies within one head."""
    new_ops: list[ops.Op] = []
    values: dict[str, Value] = dict(program.values)
    for op in program.ops:
        if isinstance(op, ops.Attention) and values[op.out].dtype == "s8" and program.caches[op.cache].v_dim % 32:
            plain = replace(values[op.out], name=op.out + ".f32", dtype="f32")
            values[plain.name] = plain
            new_ops += [replace(op, out=plain.name), ops.Quantize(op.out, plain.name)]
        else:
            new_ops.append(op)
    return replace(program, ops=tuple(new_ops), values=values)
