"""The table of formats, and the shares it names."""

from __future__ import annotations

import numpy as np

from benchmarks import codecs
from forno.loader.checkpoint import Checkpoint, Tensor, TokenizerSource


def tensor(name: str, shape: tuple[int, ...], form: str) -> Tensor:
    return Tensor(name, shape, form, np.zeros(0, np.uint8))


def test_the_mix_counts_matrices_only() -> None:
    tensors = [tensor("a", (2, 96), "q5_0"), tensor("b", (1, 64), "q8_0"), tensor("norm", (1000,), "f32")]
    checkpoint = Checkpoint("m", {}, {t.name: t for t in tensors}, TokenizerSource())
    assert codecs.mix(checkpoint) == {"q5_0": 0.75, "q8_0": 0.25}


def test_the_report_has_a_line_per_format() -> None:
    entry = {"perplexity": 15.5, "kl": 0.00123, "top1": 0.9}
    result = {"mix": {"q5_0": 0.75, "q8_0": 0.25}, "weights": entry, "caches": {"bf16": entry, "int8": entry}}
    lines = codecs.report({"Q5_0": result, "w8a8": result}).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["Q5_0", "w8a8"]
    assert lines[1].split()[1:] == ["q5_0", "75%", "q8_0", "25%", *["15.500", "0.00123"] * 3]
    assert "int8 KV: KL" in lines[0]
