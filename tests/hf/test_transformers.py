"""The reference executor against transformers in fp32, through the files that transformers itself writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forno.models import build_program
from forno.program.passes import apply
from tests.helpers.models import CONFIGS, logits_of, tokens_for

pytestmark = pytest.mark.hf


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_a_saved_model(name: str, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    pytest.importorskip("torch")
    from tests.hf.transformers_models import transformers_logits, transformers_model

    model = transformers_model(CONFIGS[name])
    model.save_pretrained(tmp_path)
    program = apply(build_program(json.loads((tmp_path / "config.json").read_text()))).with_kv_dtype("float32")
    weights = safetensors.load_file(tmp_path / "model.safetensors")
    assert set(program.weights) == set(weights)
    assert {spec.format for spec in program.weights.values()} == {"f32"}
    tokens = tokens_for(11, 150)  # beyond every window and the llama3 rope's original context of 64
    np.testing.assert_allclose(logits_of(program, weights, tokens), transformers_logits(model, tokens), rtol=0, atol=1e-4)
