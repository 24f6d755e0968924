"""What every file format is turned into: a Hugging Face shaped config, tensors by Hugging Face name, a tokenizer source.

Nothing here knows a kernel: ``format`` is the file's own precision and ``data`` its own bytes, memory-mapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from forno.loader.files import SourceFile


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight as it lies in the file."""

    name: str
    """Hugging Face name, e.g. ``model.layers.0.self_attn.q_proj.weight``."""
    shape: tuple[int, ...]
    """Hugging Face order: linear weights are ``(out, in)``."""
    format: str
    """A key of ``forno.program.formats.FORMATS``."""
    data: np.ndarray
    """uint8, 1-D, a view of the mapped file: rows of ``in`` weights, one after the other, in the format's blocks."""
    row_order: np.ndarray | None = None
    """int32 ``[out]``: row ``i`` of the weight is row ``row_order[i]`` of ``data``. GGUF stores the q and k rows of
    llama-family models in the order of interleaved rope; this undoes it without touching a value."""
    scales: np.ndarray | None = None
    """float32 ``[out]``, of ``w8a8`` only: row ``i`` of the weight is row ``i`` of ``data``, as int8, times ``scales[i]``."""


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Where the tokenizer comes from: exactly one of the two first fields is set."""

    json_path: str | None = None
    """A ``tokenizer.json``."""
    gguf: Mapping[str, Any] | None = None
    """The ``tokenizer.*`` metadata of a GGUF file, with those full key names."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """``tokenizer_config.json`` merged with ``special_tokens_map.json``, if there are any."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk, opened but not loaded."""

    name: str
    """For people and for ``/v1/models``."""
    config: Mapping[str, Any]
    """``config.json`` as Hugging Face writes it (``model_type``, ``hidden_size``, ...)."""
    tensors: Mapping[str, Tensor]
    tokenizer: TokenizerSource
    chat_template: str | None = None
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    """``generation_config.json``: eos_token_id (int or list) and default sampling values."""
    files: tuple[SourceFile, ...] = ()
    """The files the tensors are mapped from, then the index of shards if there is one, as they were just before."""

    def without_data(self) -> Checkpoint:
        """The same without tensors and tokenizer, whose files are unmapped once nothing else holds them."""
        return replace(self, tensors={}, tokenizer=TokenizerSource())
