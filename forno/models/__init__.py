"""Architectures by Hugging Face ``model_type``: from a bare config to a ``Program``, without a weight in sight."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from forno.errors import CheckpointError, UnsupportedError
from forno.program.program import Program

MODELS = {
    "llama": "forno.models.llama",
    "mistral": "forno.models.mistral",
    "qwen2": "forno.models.qwen2",
    "qwen3": "forno.models.qwen3",
}
"""``model_type`` to the module whose ``program(config)`` builds it; imported on first use."""


def build_program(config: Mapping[str, Any]) -> Program:
    """The program of a model from its ``config.json``.

    Raises ``UnsupportedError`` for an architecture or feature forno lacks (the message lists what it has), and
    ``CheckpointError`` for a field that is missing, of the wrong type, or absurd.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError("the model's config has no model_type; is it a config.json of a language model?")
    if model_type not in MODELS:
        raise UnsupportedError(f"model_type {model_type!r} is not supported; supported are {', '.join(sorted(MODELS))}")
    program: Program = import_module(MODELS[model_type]).program(config)
    return program
