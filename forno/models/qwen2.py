"""Qwen2 and Qwen2.5: the llama block with biases on q, k and v."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forno.errors import CheckpointError
from forno.models import llama
from forno.models.config import read_decoder
from forno.models.fields import MAX_LAYERS, MAX_POSITIONS, Fields, checked_number
from forno.program.program import Program

_LAYER_TYPES = {"full_attention", "sliding_attention"}


def program(config: Mapping[str, Any]) -> Program:
    cfg = read_decoder(config, kv_heads=32, max_positions=32768, windows=windows(config))
    return llama.build("qwen2", replace(cfg, attention_bias=True, mlp_bias=False), o_bias=False)


def windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Per-layer windows as Qwen2 and Qwen3 define them, empty for none: off by default, else from layer
    ``max_window_layers`` on, unless ``layer_types`` says which layers slide."""
    fields = Fields(config)
    layers = fields.integer("num_hidden_layers", MAX_LAYERS)
    if not fields.flag("use_sliding_window") or config.get("sliding_window", 4096) is None:
        return ()
    window = fields.integer("sliding_window", MAX_POSITIONS, 4096)
    types = config.get("layer_types")
    if types is None:
        first = checked_number("max_window_layers", config.get("max_window_layers", 28), 0, MAX_LAYERS)
        types = ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    if not isinstance(types, list) or len(types) != layers or not set(map(str, types)) <= _LAYER_TYPES:
        raise CheckpointError(f"layer_types must list {layers} of {', '.join(sorted(_LAYER_TYPES))}")
    return tuple(window if t == "sliding_attention" else 0 for t in types)
