"""Qwen3 (dense): the llama block with a norm on each head of q and k, and heads of 128 whatever the hidden size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forno.models import llama, qwen2
from forno.models.config import read_decoder
from forno.program.program import Program


def program(config: Mapping[str, Any]) -> Program:
    cfg = read_decoder(config, kv_heads=32, head_dim=128, max_positions=32768, windows=qwen2.windows(config))
    return llama.build("qwen3", replace(cfg, mlp_bias=False), q_k_norm=True)
