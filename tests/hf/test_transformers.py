"""The reference executor and the native runner against transformers in fp32, through files that transformers writes."""

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
    from safetensors.numpy import load_file

    from tests.hf.transformers_models import transformers_logits, transformers_model

    model = transformers_model(CONFIGS[name])
    model.save_pretrained(tmp_path)
    program = apply(build_program(json.loads((tmp_path / "config.json").read_text()))).with_kv_dtype("float32")
    weights = load_file(tmp_path / "model.safetensors")
    assert set(program.weights) == set(weights)
    assert {spec.format for spec in program.weights.values()} == {"f32"}
    tokens = tokens_for(11, 150)  # beyond every window and the llama3 rope's original context of 64
    np.testing.assert_allclose(logits_of(program, weights, tokens), transformers_logits(model, tokens), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_served_model_gives_its_logits(name: str, tmp_path: Path) -> None:
    """The way a user's model goes: open the directory, pack, run on the native executor with the default settings."""
    from forno.config import CacheConfig, EngineConfig
    from forno.loader.open import open_checkpoint
    from forno.request import Row, StepPlan
    from forno.runner.cpu import CpuRunner
    from tests.helpers.runners import request
    from tests.hf.transformers_models import transformers_logits, transformers_model

    model = transformers_model(CONFIGS[name])
    model.save_pretrained(tmp_path)
    runner = CpuRunner.from_checkpoint(open_checkpoint(tmp_path), EngineConfig(cache=CacheConfig(num_blocks_override=16)))
    runner.executor.capture_logits(True)
    tokens = tokens_for(11, 150)
    index = runner.admit(request(tokens, prompt_logprobs=0, max_tokens=1))
    runner.run(StepPlan((Row(index, 0, len(tokens), tuple(range(5)), True),)))
    logits = np.array(runner.executor.logits()[: len(tokens)])
    np.testing.assert_allclose(logits, transformers_logits(model, tokens), rtol=0, atol=1e-4)
