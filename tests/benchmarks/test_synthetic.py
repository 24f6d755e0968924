"""Files of random weights: what is written is read back, by forno and with the tokenizer it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import synthetic, writers
from benchmarks.models import MODELS
from benchmarks.weights import to_bf16
from benchmarks.writers import Source
from forno.loader.dequant import dequantize
from forno.loader.open import check_tensors, open_checkpoint
from forno.models import build_program
from forno.text import load_tokenizer

TEXT = "The quick brown fox returns 12345 objects,\n  or 'none'."
TINY: dict[str, Any] = MODELS["qwen2.5-0.5b"] | {
    "vocab_size": 9000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture(scope="module")
def source() -> Source:
    return synthetic.synthetic(TINY, seed=3)


def rounded(values: np.ndarray) -> np.ndarray:
    return (to_bf16(values).astype(np.uint32) << 16).view(np.float32)


def same_model(path: Path, source: Source) -> None:
    """The file holds the source's weights in bf16 (vectors exactly, or in bf16 too), its config and its tokenizer."""
    checkpoint = open_checkpoint(path)
    assert check_tensors(build_program(checkpoint.config), checkpoint) == ()
    for name, shape in source.shapes.items():
        read, written = dequantize(checkpoint.tensors[name]), source.weight(name)
        assert read.shape == shape
        assert np.array_equal(read, rounded(written)) or np.array_equal(read, written), name
    tokenizer = load_tokenizer(checkpoint)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False) == [source.config["eos_token_id"]]


def test_gguf_holds_the_model(tmp_path: Path, source: Source) -> None:
    same_model(synthetic.make("BF16", source, "tiny", tmp_path), source)


def test_a_directory_holds_the_model(tmp_path: Path, source: Source) -> None:
    same_model(synthetic.make("hf", source, "tiny", tmp_path), source)


def test_files_are_made_once_and_whole(tmp_path: Path, source: Source) -> None:
    path = synthetic.make("BF16", source, "tiny", tmp_path)
    before = path.stat()
    assert synthetic.make("BF16", source, "tiny", tmp_path).stat() == before

    def interrupted() -> None:
        with writers.complete(tmp_path / "other") as part:
            part.write_text("half")
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        interrupted()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_weights_depend_on_seed_and_name_only() -> None:
    one, other = synthetic.synthetic(TINY, 0), synthetic.synthetic(TINY, 1)
    names = list(one.shapes)
    assert np.array_equal(one.weight(names[1]), synthetic.synthetic(TINY, 0).weight(names[1]))
    assert not np.array_equal(one.weight(names[1]), other.weight(names[1]))
    assert "model.layers.1.mlp.down_proj.weight" in names
    down = one.weight("model.layers.1.mlp.down_proj.weight")
    assert down.std() == pytest.approx((96 * 2 * 2) ** -0.5, rel=0.05)


def test_the_vocabulary_is_complete() -> None:
    metadata = synthetic.tokenizer_metadata(TINY["vocab_size"])
    tokens = metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == len(set(tokens)) == len(metadata["tokenizer.ggml.token_type"]) == TINY["vocab_size"]
    known = set(tokens)
    for merge in metadata["tokenizer.ggml.merges"]:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= known
