"""The sides of the accuracy comparison on a tiny model: the definition against the native executor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy import DEFINITION, PEERS, absolute, cached, forno_logits, paired, reference_logits, variants
from benchmarks.scores import Scores
from forno.loader.checkpoint import Checkpoint, TokenizerSource
from tests.helpers.models import CONFIGS, tokens_for
from tests.helpers.runners import Model

WINDOW = 40


@pytest.fixture
def checkpoint() -> Checkpoint:
    return Checkpoint("tiny", CONFIGS["llama"], Model.tiny().tensors, TokenizerSource())


def test_the_native_executor_agrees_with_the_definition(checkpoint: Checkpoint) -> None:
    tokens = np.array(tokens_for(3, 90), np.int32)
    expected = list(reference_logits(checkpoint, tokens, WINDOW))
    found = list(forno_logits(checkpoint, tokens, WINDOW, isa="portable", kv_cache_dtype="float32", max_num_seqs=1))
    assert [len(part) for part in found] == [40, 40, 10]
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_the_definition_is_computed_once(tmp_path: Path) -> None:
    arrays = [np.full((2, 3), i, np.float32) for i in range(3)]
    made = 0

    def count() -> Iterator[np.ndarray]:
        nonlocal made
        for array in arrays:
            made += 1
            yield array

    for _ in range(2):
        found = list(cached(count(), tmp_path / "kept", 3))
        assert all((a == b).all() for a, b in zip(arrays, found, strict=True))
    assert made == 3


def test_every_build_and_every_cache_has_its_turn() -> None:
    found = variants(["avx512", "portable"])
    assert found["forno portable, bf16 KV"] == {"isa": "portable", "kv_cache_dtype": "bf16"}
    assert {options["kv_cache_dtype"] for options in found.values()} == {"bf16", "float32", "int8"}


def test_tables_say_who_is_better() -> None:
    rng = np.random.default_rng(0)
    base = rng.random(640)

    def scores(extra: float) -> Scores:
        return Scores(base + extra + 1e-6 * rng.random(640), base, base > 0.01)

    found = {DEFINITION: scores(0.0), **{peer: scores(0.002) for peer in PEERS}, "ours": scores(0.001), "worse": scores(0.003)}
    peer = next(iter(PEERS))
    lines = {line.split("  ")[0]: line for line in paired(found, peer).splitlines()}
    assert "-1000 ± 0" in lines["ours"]
    assert "better" in lines["ours"]
    assert "worse" in lines["worse"].removeprefix("worse")
    assert DEFINITION not in lines
    assert peer not in lines
    assert f"{found['ours'].kl.mean():.6f}" in absolute(found)
