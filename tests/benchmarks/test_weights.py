"""Random weights of every format decode to values of the size that was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.weights import random_weights
from forno.loader.dequant import dequantize_bytes, row_bytes
from forno.program.formats import FORMATS


@pytest.mark.parametrize("form", FORMATS)
def test_random_weights_are_of_the_size_wanted(form: str) -> None:
    data = random_weights(form, (64, 512), np.random.default_rng(0), 0.1)
    assert len(data) == 64 * row_bytes(form, 512)
    values = dequantize_bytes(np.frombuffer(data, np.uint8), form)
    assert np.isfinite(values).all()
    assert 0.05 < values.std() < 0.2
    assert abs(values.mean()) < 0.02
