"""Weights as the kernels read them: every matrix packed once, in parallel, source pages given back as they are done.

Knows which weights a program wants and in which order; the layout itself is packed.hpp's.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from forno import _native
from forno.errors import CheckpointError
from forno.program import ops
from forno.program.program import Program

PANEL = 64
"""Outputs side by side in a packed matrix."""


class StoredTensor(Protocol):
    """What this module reads of ``forno.loader.checkpoint.Tensor``."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def format(self) -> str: ...
    @property
    def data(self) -> np.ndarray: ...
    @property
    def row_order(self) -> np.ndarray | None: ...
    @property
    def scales(self) -> np.ndarray | None: ...


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """The weights of one program. A matrix used twice (a tied head) is here once."""

    matrices: Mapping[tuple[str, ...], Any]
    """``_native.PackedMatrix`` by weight name, or by the names of gate and up."""
    vectors: Mapping[str, np.ndarray] = field(default_factory=dict)
    """float32, by weight name."""
    memory: Any = None
    """``_native.WeightMemory`` that holds the matrices, in their order."""

    def matrix(self, name: str) -> Any:
        return self.matrices[(name,)]

    def gate_up(self, gate: str, up: str) -> Any:
        """Both matrices interleaved in panels of 32 and 32 outputs."""
        return self.matrices[(gate, up)]

    def gate_up_bias(self, gate: str | None, up: str | None, outputs: int) -> np.ndarray | None:
        """The biases in the order of an interleaved matrix, zero-padded; None if there are none."""
        if gate is None and up is None:
            return None
        half = PANEL // 2
        panels = -(-outputs // half)
        bias = np.zeros((2, panels * half), np.float32)
        for row, name in zip(bias, (gate, up), strict=True):
            if name is not None:
                row[:outputs] = self.vectors[name]
        return np.ascontiguousarray(bias.reshape(2, panels, half).transpose(1, 0, 2)).reshape(-1)

    @property
    def bytes(self) -> int:
        """Memory that the weights occupy."""
        matrices = sum(int(m.nbytes) for m in self.matrices.values())
        return matrices + sum(v.nbytes for v in self.vectors.values())


def pack_weights(program: Program, tensors: Mapping[str, StoredTensor], threads: int) -> PackedWeights:
    """Pack every weight of ``program``, held in the format that the program names. Other Python threads run meanwhile.

    Raises ``CheckpointError`` for a weight that is missing or does not fit.
    """
    weights = reserve(program, tensors)
    matrices, keys = weights.matrices, list(weights.matrices)
    # One call for all: a job per Python thread would wait for the interpreter, which a start keeps busy, between jobs.
    jobs = [_job(program.weights[key[0]].format, key, matrix, [tensors[n] for n in key]) for key, matrix in matrices.items()]
    failure = _native.pack_all(jobs, threads)
    if failure is not None:
        raise CheckpointError(f"cannot pack {' and '.join(keys[failure[0]])}: {failure[1]}")
    return weights


def reserve(program: Program, tensors: Mapping[str, StoredTensor]) -> PackedWeights:
    """What ``pack_weights`` gives, its matrices not yet filled. Raises ``CheckpointError`` as that does."""
    for name, spec in program.weights.items():
        if name not in tensors:
            raise CheckpointError(f"the model has no tensor {name!r}, which its architecture needs")
        if tensors[name].shape != spec.shape:
            raise CheckpointError(f"tensor {name!r} has shape {tensors[name].shape}, the architecture needs {spec.shape}")
    vectors = {n: as_vector(n, tensors[n]) for n, spec in program.weights.items() if len(spec.shape) == 1}
    keys = matrix_keys(program)
    try:
        memory = _native.WeightMemory(sum(_native.packed_bytes(*matrix_shape(program, key)) for key in keys))
        matrices = {key: _native.PackedMatrix(*matrix_shape(program, key), memory) for key in keys}
    except ValueError as error:
        raise CheckpointError(f"cannot pack the weights: {error}") from error
    return PackedWeights(matrices, vectors, memory)


def as_vector(name: str, tensor: StoredTensor) -> np.ndarray:
    """A norm weight or bias as float32. Raises ``CheckpointError`` for block formats, which no vector has."""
    raw = tensor.data
    if tensor.format == "f32":
        values = raw.view("<f4").astype(np.float32)
    elif tensor.format == "f16":
        values = raw.view("<f2").astype(np.float32)
    elif tensor.format == "bf16":
        values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        raise CheckpointError(f"tensor {name!r} is a vector held as {tensor.format}; only f32, f16 and bf16 make sense")
    return values if tensor.row_order is None else values[tensor.row_order]


def matrix_keys(program: Program) -> list[tuple[str, ...]]:
    """The distinct matrices that ops read: single weights, and gate with up where one op computes both."""
    keys: dict[tuple[str, ...], None] = {}
    for op in program.ops:
        if isinstance(op, ops.Linear) and op.activation == "silu_mul":
            keys[op.weights] = None
        elif isinstance(op, ops.Linear):
            keys.update(dict.fromkeys((w,) for w in op.weights))
        elif isinstance(op, (ops.Embed, ops.SampleHead)):
            keys[(op.weight,)] = None
    return list(keys)


def matrix_shape(program: Program, key: tuple[str, ...]) -> tuple[str, int, int, bool]:
    """A matrix's format, rows, columns, and whether it is gate and up interleaved."""
    rows, columns = program.weights[key[0]].shape
    return program.weights[key[0]].format, rows * len(key), columns, len(key) > 1


def _job(target: str, key: tuple[str, ...], matrix: Any, sources: list[StoredTensor]) -> tuple[Any, ...]:
    """What ``_native.pack_all`` takes for one matrix."""
    given, order = sources[0].format, sources[0].row_order
    if any(s.format != given for s in sources):
        raise CheckpointError(f"{' and '.join(key)} are one matrix but are held in different formats")
    if len(key) > 1 and any(s.row_order is not None for s in sources):
        raise CheckpointError(f"{' and '.join(key)} are interleaved and cannot be reordered too")
    mapped = all(is_mapped(s.data) for s in sources)
    return matrix, [(s.data, s.scales) for s in sources], "" if given == target else given, order, mapped


def is_mapped(data: np.ndarray) -> bool:
    """Whether ``data`` lies in a mapped file, so that its pages can be dropped and read again."""
    owner: Any = data
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return isinstance(owner.obj if isinstance(owner, memoryview) else owner, mmap.mmap)
