"""Programs at the two models' shapes, and random weights for them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.kernels import shapes
from benchmarks.kernels.shapes import RandomTensors, fitting, layers_for, program_for
from benchmarks.models import MODELS
from forno.loader.dequant import row_bytes
from forno.program import ops
from forno.program.cost_model import kind
from forno.program.formats import FORMATS


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("codec", FORMATS)
def test_every_codec_fits_every_model(model: str, codec: str) -> None:
    program = program_for(model, codec, 1)
    down = next(op for op in program.ops if isinstance(op, ops.Linear) and kind(op) == "down")
    assert program.weights[down.weights[0]].format == codec, "both models' ffn is a multiple of 256"


def test_rows_that_blocks_do_not_divide_fall_back() -> None:
    assert fitting("q4_k", 576) == "q5_0"
    assert fitting("q4_k", 4864) == "q4_k"
    assert fitting("q8_0", 576) == "q8_0"


def test_layers_exceed_the_last_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "cold_bytes", lambda: 64 << 20)
    assert layers_for("smollm2-135m", "q4_0") == 30, "no more than the model has"
    assert layers_for("smollm2-135m", "f32") == 5
    assert layers_for("qwen2.5-0.5b", "f32") == 2, "layers differ in what runs around them"


def test_tensors_are_whole_and_shared() -> None:
    program = program_for("smollm2-135m", "q5_1", 2)
    tensors = RandomTensors(program)
    assert len(tensors) == len(list(tensors)) == len(program.weights)
    first, second = (tensors[f"model.layers.{i}.mlp.down_proj.weight"] for i in range(2))
    assert first.data is second.data
    assert first.data.size == 576 * row_bytes("q5_1", 1536)
    np.testing.assert_array_equal(tensors["model.norm.weight"].data.view(np.float32), np.ones(576, np.float32))
