"""Programs of the models whose shapes kernels are measured at, and random weights in one format for them. Reads no file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from benchmarks.models import MODELS
from benchmarks.weights import held_as, random_tensor
from forno.kernels.cpu import cpuinfo
from forno.kernels.cpu.lower import Limits
from forno.kernels.cpu.pack import pack_weights
from forno.loader.checkpoint import Tensor
from forno.models import build_program
from forno.program import passes
from forno.program.formats import FORMATS
from forno.program.program import Program
from forno.runner.cpu import CpuRunner
from forno.runner.setup import SPIN_US

FALLBACKS = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
"""What llama-quantize takes where a row is no multiple of 256 weights."""
BLOCK = 32
"""Tokens of a KV block."""
POSITIONS = 4096
"""The longest sequence."""
_PATTERN = 1 << 16
"""Weights after which a random matrix repeats itself: its speed does not depend on its values."""


def program_for(model: str, codec: str, layers: int, kv: str = "bf16", disable: Iterable[str] = ()) -> Program:
    """``model`` with ``layers`` layers, its matrices held as ``codec`` where their rows allow it."""
    program = build_program({**MODELS[model], "num_hidden_layers": layers, "max_position_embeddings": POSITIONS})
    formats = {name: fitting(held_as(codec, name), spec.shape[-1]) for name, spec in program.weights.items()}
    return passes.apply(program.with_formats(formats).with_kv_dtype(kv), disable)


def fitting(codec: str, columns: int) -> str:
    """``codec``, or what stands in for it in rows of ``columns`` weights."""
    return codec if columns % FORMATS[codec].block == 0 else FALLBACKS[codec]


def layers_for(model: str, codec: str) -> int:
    """Layers whose weights are twice what the last cache holds, so that each is read from memory; at most the model's own."""
    program = program_for(model, codec, 1)
    layer = sum(spec.bytes for name, spec in program.weights.items() if ".layers." in name)
    return int(max(2, min(MODELS[model]["num_hidden_layers"], -(-cold_bytes() // layer))))


def cold_bytes() -> int:
    """Bytes that, read in turn, are never found in a cache."""
    return 2 * max((c.bytes for c in cpuinfo.caches()), default=32 << 20)


class RandomTensors(Mapping[str, Tensor]):
    """Weights for every name of ``program``; those of one shape and format share their bytes."""

    def __init__(self, program: Program) -> None:
        self._weights = program.weights
        self._made: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        spec = self._weights[name]
        key = (spec.format, spec.shape)
        if key not in self._made:
            self._made[key] = _random(*key)
        return replace(self._made[key], name=name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _random(form: str, shape: tuple[int, ...]) -> Tensor:
    """A few random rows again and again; a vector of ones."""
    if len(shape) == 1:
        return Tensor("", shape, form, np.ones(shape, np.float32).view(np.uint8))
    rows = min(shape[0], max(1, _PATTERN // shape[1]))
    few = random_tensor("", form, (rows, *shape[1:]), np.random.default_rng(0), shape[1] ** -0.5)
    scales = None if few.scales is None else np.resize(few.scales, shape[0])
    return replace(few, shape=shape, data=np.resize(few.data, few.data.size // rows * shape[0]), scales=scales)


def random_runner(program: Program, isa: str, threads: int, rows: int, blocks: int, spin_us: int = SPIN_US) -> CpuRunner:
    """A runner with random weights for steps of ``rows`` tokens, and ``blocks`` KV blocks of ``BLOCK`` tokens."""
    limits = Limits(
        threads=threads,
        isa=isa,
        spin_us=spin_us,
        max_rows=rows,
        max_positions=program.max_positions,
        num_blocks=blocks,
        block_size=BLOCK,
    )
    return CpuRunner(program, pack_weights(program, RandomTensors(program), threads), limits)
