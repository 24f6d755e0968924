"""Tiny models for tests: configs, weights by a fixed rule, and running tokens through the reference executor."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forno.kernels.reference.executor import ReferenceExecutor
from forno.program.batch import Batch
from forno.program.program import Program

BLOCK_SIZE = 8

_SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_SHAPE, "model_type": "llama"},
    "llama-tied-linear": {
        **_SHAPE,
        "model_type": "llama",
        "tie_word_embeddings": True,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "llama-llama3-biases": {
        **_SHAPE,
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 32,
        "rope_theta": 500000.0,
        "rope_scaling": _LLAMA3,
    },
    "mistral": {**_SHAPE, "model_type": "mistral", "sliding_window": None},
    "mistral-window": {**_SHAPE, "model_type": "mistral", "sliding_window": 7},
    "qwen2": {**_SHAPE, "model_type": "qwen2", "tie_word_embeddings": True, "use_sliding_window": False},
    "qwen2-window": {
        **_SHAPE,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "qwen3": {**_SHAPE, "model_type": "qwen3", "head_dim": 32, "attention_bias": False},
}
"""By name; together they use every feature that the four architectures have. GQA groups are of 3."""


def weights_for(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    """float32 weights by name, the same on every machine: norms near 1, the rest normal and scaled by fan-in."""
    weights = {}
    for name, shape in shapes.items():
        # RandomState's stream is frozen for good, unlike default_rng's.
        noise = np.random.RandomState(zlib.crc32(name.encode()) + seed).standard_normal(shape)
        if "norm" in name:
            noise = 1 + 0.2 * noise
        elif len(shape) == 1:
            noise = 0.3 * noise
        else:
            noise = noise * 1.5 / np.sqrt(shape[1])
        weights[name] = noise.astype(np.float32)
    return weights


def tiny_weights(program: Program, seed: int = 0) -> dict[str, np.ndarray]:
    return weights_for({n: w.shape for n, w in program.weights.items()}, seed)


def tokens_for(seed: int, count: int, vocab: int = 96) -> list[int]:
    return np.random.RandomState(seed).randint(0, vocab, count).tolist()


def batch_of(parts: Sequence[tuple[Sequence[int], int, Sequence[int]]]) -> Batch:
    """A batch that wants every row's logits. Each part is (tokens to compute, start, block table)."""
    counts = [len(tokens) for tokens, _, _ in parts]
    row0 = np.cumsum([0, *counts])
    rows = [(r, i, s + j) for i, (t, s, _) in enumerate(parts) for j, r in enumerate(range(row0[i], row0[i] + len(t)))]
    spans = [(i, start, counts[i], row0[i]) for i, (_, start, _) in enumerate(parts)]
    return Batch(
        token_ids=np.array([t for tokens, _, _ in parts for t in tokens], np.int32),
        positions=np.array([position for _, _, position in rows], np.int32),
        spans=np.array(spans, np.int32).reshape(-1, 4),
        blocks=np.array([b for _, _, blocks in parts for b in blocks], np.int32),
        block_offsets=np.cumsum([0, *(len(blocks) for _, _, blocks in parts)]).astype(np.int32),
        outputs=np.array([(row, slot, position, -1) for row, slot, position in rows], np.int32).reshape(-1, 4),
    )


def logits_of(program: Program, weights: Mapping[str, np.ndarray], tokens: Sequence[int]) -> np.ndarray:
    """float32 ``[len(tokens), vocab]``: every position's logits, the tokens computed in one step."""
    blocks = list(range(-(-len(tokens) // BLOCK_SIZE)))[::-1]
    executor = ReferenceExecutor(program, weights, len(blocks), BLOCK_SIZE)
    logits: np.ndarray = executor.run(batch_of([(tokens, 0, blocks)]))["logits"]
    return logits
