"""Tiny transformers models with the weights of ``tests.helpers.models``, and the golden files made from them.

``python -m tests.hf.transformers_models`` writes ``tests/models/golden/*.npz`` anew; it needs the ``hf`` extra.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.helpers.models import CONFIGS, tokens_for, weights_for

GOLDEN = Path(__file__).resolve().parents[1] / "models" / "golden"


def transformers_model(config: dict[str, Any]) -> PreTrainedModel:
    """An fp32 model whose parameters follow the rule of ``tests.helpers.models.weights_for``."""
    settings = {k: v for k, v in config.items() if k not in ("model_type", "torch_dtype")}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(config["model_type"], **settings), dtype=torch.float32, attn_implementation="eager"
    )
    parameters = dict(model.named_parameters())  # a tied head appears once, under the embedding's name
    weights = weights_for({name: tuple(p.shape) for name, p in parameters.items()})
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(weights[name]))
    return model.eval()


def transformers_logits(model: PreTrainedModel, tokens: list[int]) -> np.ndarray:
    """float32 ``[len(tokens), vocab]``."""
    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    return logits


def write_golden() -> None:
    for name, config in CONFIGS.items():
        tokens = tokens_for(7, 20)
        logits = transformers_logits(transformers_model(config), tokens)
        np.savez_compressed(GOLDEN / f"{name}.npz", config=json.dumps(config), tokens=np.array(tokens), logits=logits)


if __name__ == "__main__":
    write_golden()
