"""The native runner's logits against transformers' own (``tests/models/golden``), whole and in chunks, on every ISA."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forno import _native
from forno.models import build_program
from forno.program import passes
from forno.request import Row, StepPlan
from tests.helpers.models import CONFIGS, tiny_weights
from tests.helpers.runners import Model, request, stored

GOLDEN = Path(__file__).parents[1] / "models" / "golden"


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("chunk", [96, 17])
def test_native_gives_transformers_logits(name: str, isa: str, chunk: int) -> None:
    golden = np.load(GOLDEN / f"{name}.npz")
    program = build_program(json.loads(str(golden["config"])))
    tensors = {n: stored(n, w, "f32") for n, w in tiny_weights(program).items()}
    program = passes.apply(program.with_formats({n: t.format for n, t in tensors.items()}).with_kv_dtype("float32"))
    runner = Model(program, tensors).runner(threads=2, isa=isa)
    runner.executor.capture_logits(True)
    tokens = golden["tokens"].tolist()
    index = runner.admit(request(tokens, prompt_logprobs=0, max_tokens=1))
    blocks = tuple(range(-(-(len(tokens) + 1) // 32)))
    found = []
    for start in range(0, len(tokens), chunk):
        count = min(chunk, len(tokens) - start)
        runner.run(StepPlan((Row(index, start, count, blocks, start + count == len(tokens)),)))
        found.append(np.array(runner.executor.logits()[:count]))
    np.testing.assert_allclose(np.concatenate(found), golden["logits"], rtol=0, atol=1e-4)
