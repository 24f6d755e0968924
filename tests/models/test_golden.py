"""Logits of tiny models against transformers' own, recorded in ``golden/`` by ``tests/hf/transformers_models.py``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forno.models import build_program
from forno.program.passes import apply
from tests.helpers.models import CONFIGS, logits_of, tiny_weights

GOLDEN = Path(__file__).parent / "golden"


def test_every_tiny_model_has_a_golden_file() -> None:
    assert {path.stem for path in GOLDEN.glob("*.npz")} == set(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_reference_gives_transformers_logits(name: str) -> None:
    golden = np.load(GOLDEN / f"{name}.npz")
    program = apply(build_program(json.loads(str(golden["config"])))).with_kv_dtype("float32")
    logits = logits_of(program, tiny_weights(program), golden["tokens"].tolist())
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=1e-4)
    assert golden["logits"].std() > 0.5  # large enough for 1e-4 to mean something
