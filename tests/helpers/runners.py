"""The native and the reference runner on the same tiny model, and steps through either."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.weights import quantize_channels
from forno.kernels.cpu.lower import Limits
from forno.kernels.cpu.pack import pack_weights
from forno.loader.checkpoint import Tensor
from forno.loader.dequant import dequantize
from forno.models import build_program
from forno.program import passes
from forno.program.program import Program
from forno.request import Request, Row, SamplingParams, StepPlan
from forno.runner.cpu import CpuRunner
from forno.runner.reference import ReferenceRunner
from tests.helpers.gguf_writer import encode, random_weights
from tests.helpers.models import CONFIGS, tiny_weights

BLOCK = 32
NUM_BLOCKS = 24
MAX_ROWS = 96


_WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32}


@dataclass(frozen=True)
class Model:
    """A fused program with its weights, as stored and as float32."""

    program: Program
    tensors: Mapping[str, Tensor]

    @classmethod
    def tiny(
        cls,
        name: str = "llama",
        format: str = "f32",
        kv: str = "float32",
        disable: Iterable[str] = (),
        materialized: bool = False,
    ) -> Model:
        """One of ``CONFIGS``, its matrices held as ``format``; widened where K-quants need rows of 256."""
        program = build_program({**CONFIGS[name], **(_WIDE if format.endswith("_k") else {})})
        tensors = {n: stored(n, w, format) for n, w in tiny_weights(program).items()}
        program = program.with_formats({n: t.format for n, t in tensors.items()}).with_kv_dtype(kv)
        if materialized:
            program = program.with_materialized_attention()
        return cls(passes.apply(program, disable), tensors)

    def runner(self, threads: int = 1, isa: str = "portable", max_rows: int = MAX_ROWS) -> CpuRunner:
        limits = Limits(
            threads=threads,
            isa=isa,
            spin_us=0,
            max_rows=max_rows,
            max_positions=self.program.max_positions,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK,
        )
        return CpuRunner(self.program, pack_weights(self.program, self.tensors, threads), limits)

    def reference(self) -> ReferenceRunner:
        weights = {name: dequantize(self.tensors[name]) for name in self.program.weights}
        return ReferenceRunner(self.program, weights, NUM_BLOCKS, BLOCK)


def stored(name: str, weights: np.ndarray, format: str) -> Tensor:
    """``weights`` as a checkpoint would hold them, vectors as float32; random codes in formats without an encoder."""
    if weights.ndim == 1:
        format = "f32"
    if format == "w8a8":
        codes, scales = quantize_channels(weights)
        values = (scales.astype(np.uint32) << 16).view(np.float32).reshape(-1)
        return Tensor(name, weights.shape, format, codes.view(np.uint8).reshape(-1), scales=values)
    if format in ("f32", "f16", "bf16", "q8_0", "q4_1"):
        data = encode(weights, format)
    else:
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        data = random_weights(format, weights.shape, rng, 1.5 / np.sqrt(weights.shape[1]))
    return Tensor(name, weights.shape, format, np.frombuffer(data, np.uint8))


def request(prompt: Sequence[int], *, constraint: Any = None, eos: tuple[int, ...] = (), **sampling: Any) -> Request:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 64, **sampling})
    return Request("r", tuple(prompt), params, constraint=constraint, eos_token_ids=eos)


def score_prompt(runner: Any, prompt: Sequence[int], blocks: tuple[int, ...] = (5, 1, 3)) -> np.ndarray:
    """float32 ``[len(prompt), vocab]``: the logits of every position, from the native runner, in one step."""
    slot = runner.admit(request(prompt, prompt_logprobs=0))
    runner.executor.capture_logits(True)
    runner.run(StepPlan((Row(slot, 0, len(prompt), blocks, True),)))
    runner.executor.capture_logits(False)
    runner.release(slot)
    logits: np.ndarray = runner.executor.logits()[: len(prompt)].copy()
    return logits


def generate(runner: Any, request: Request, count: int, chunk: int = 1000, blocks: tuple[int, ...] = (7, 2, 4)) -> list[int]:
    """Tokens of one request alone: its prompt in chunks, then one token per step."""
    slot = runner.admit(request)
    tokens: list[int] = []
    position = 0
    while len(tokens) < count:
        end = min(position + chunk, len(request.prompt) + len(tokens))
        sample = end == len(request.prompt) + len(tokens)
        result = runner.run(StepPlan((Row(slot, position, end - position, blocks, sample),)))
        assert not result.errors, result.errors
        tokens += result.tokens[0]
        position = end
    runner.release(slot)
    return tokens
