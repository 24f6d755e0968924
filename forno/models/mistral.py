"""Mistral 7B and its family: the llama block, with a sliding window on every layer in the first release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forno.models import llama
from forno.models.config import read_decoder
from forno.models.fields import MAX_LAYERS, MAX_POSITIONS, Fields
from forno.program.program import Program


def program(config: Mapping[str, Any]) -> Program:
    cfg = read_decoder(config, kv_heads=8, max_positions=131072, windows=_windows(config))
    return llama.build("mistral", replace(cfg, attention_bias=False, mlp_bias=False))


def _windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    """``sliding_window`` null means full attention; absent means 4096, as in the first release."""
    if config.get("sliding_window", 4096) is None:
        return ()
    fields = Fields(config)
    window = fields.integer("sliding_window", MAX_POSITIONS, 4096)
    return (window,) * fields.integer("num_hidden_layers", MAX_LAYERS)
