"""What a config may claim before anything is built from it. Shared by every file format.

A program is built from numbers in a file: without bounds, a layer count of two billion is two billion ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forno.errors import CheckpointError

MAX_WIDTH = 1 << 22
"""Largest hidden, feed-forward or vocabulary size believed; the largest models stay far below."""
MAX_HEAD_DIM = 1 << 14
MAX_POSITIONS = 1 << 31

_BOUNDS = {
    "vocab_size": MAX_WIDTH,
    "hidden_size": MAX_WIDTH,
    "intermediate_size": MAX_WIDTH,
    "num_attention_heads": MAX_WIDTH,
    "num_key_value_heads": MAX_WIDTH,
    "head_dim": MAX_HEAD_DIM,
    "max_position_embeddings": MAX_POSITIONS,
}


def check_sizes(config: Mapping[str, Any], num_tensors: int, source: str) -> None:
    """Raise ``CheckpointError`` for a size that is no positive integer or absurdly large. Absent sizes are the model's affair.

    Every layer holds tensors, so ``num_tensors`` bounds the number of layers.
    """
    for key, high in (*_BOUNDS.items(), ("num_hidden_layers", max(num_tensors, 1))):
        value = config.get(key)
        if value is not None and (type(value) is not int or not 1 <= value <= high):
            raise CheckpointError(f"{source}: {key} is {value!r:.80}, but has to be an integer from 1 to {high}")
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if config.get("head_dim") is None and hidden and heads and hidden // heads > MAX_HEAD_DIM:
        raise CheckpointError(f"{source}: heads of {hidden // heads} elements are larger than the {MAX_HEAD_DIM} expected")
