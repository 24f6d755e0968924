"""Lowering: tables and refusals. That lowered programs compute the right thing is shown in tests/runner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forno.errors import UnsupportedError
from forno.kernels.cpu.lower import rope_table
from forno.program.ops import Op, RopeSpec
from tests.helpers.runners import Model


def test_rope_table_holds_cosines_then_sines_scaled() -> None:
    table = rope_table(RopeSpec(4, (1.0, 0.01), attention_factor=2.0), 1000)
    assert (table.shape, table.dtype) == ((1000, 4), np.float32)
    expected = 2 * np.array([np.cos(999.0), np.cos(9.99), np.sin(999.0), np.sin(9.99)])
    assert table[999] == pytest.approx(expected, abs=1e-6)


def test_unknown_ops_and_caches_are_named() -> None:
    class Scan(Op):
        pass

    model = Model.tiny()
    with pytest.raises(UnsupportedError, match="no kernel for Scan"):
        Model(replace(model.program, ops=(*model.program.ops, Scan())), model.tensors).runner()
    caches = {name: replace(cache, kind="state") for name, cache in model.program.caches.items()}
    with pytest.raises(UnsupportedError, match="'state'"):
        Model(replace(model.program, caches=caches), model.tensors).runner()
