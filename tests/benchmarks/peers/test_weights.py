"""A converted folder holds what the GGUF file says: as our own loader reads it back, rows and tokenizer included."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import weights
from benchmarks.peers.place import PeerError
from forno.loader.dequant import dequantize
from forno.loader.open import open_checkpoint
from forno.text import load_chat_template, load_tokenizer
from tests.helpers.gguf_writer import write_tiny_gguf
from tests.helpers.tiny import TinyModel


@pytest.fixture(params=["llama", "qwen2"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(request.param), "q4_1")


def test_a_folder_reads_back_as_the_file(file: Path, tmp_path: Path) -> None:
    ours, theirs = open_checkpoint(file), open_checkpoint(weights.converted(file, tmp_path, "f32"))
    assert {name: value for name, value in ours.config.items() if value is not None}.items() <= theirs.config.items()
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        assert tensor.shape == theirs.tensors[name].shape
        np.testing.assert_array_equal(dequantize(tensor), dequantize(theirs.tensors[name]), err_msg=name)


def test_a_folder_tokenizes_and_renders_as_the_file(file: Path, tmp_path: Path) -> None:
    ours, theirs = open_checkpoint(file), open_checkpoint(weights.converted(file, tmp_path))
    tokenizers = [load_tokenizer(checkpoint) for checkpoint in (ours, theirs)]
    text = "the hello<|im_end|> in the oven"
    assert tokenizers[0].encode(text) == tokenizers[1].encode(text)
    assert tokenizers[0].special_texts.items() <= tokenizers[1].special_texts.items()
    message = [{"role": "user", "content": "hello"}]
    prompts = [load_chat_template(c, t).render(message) for c, t in zip((ours, theirs), tokenizers, strict=True)]
    assert prompts[0] == prompts[1]


def test_bf16_is_the_nearest_to_each_weight(file: Path, tmp_path: Path) -> None:
    ours, theirs = open_checkpoint(file), open_checkpoint(weights.converted(file, tmp_path, "bf16"))
    assert theirs.config["torch_dtype"] == "bfloat16"
    for name, tensor in ours.tensors.items():
        exact, rounded = dequantize(tensor), dequantize(theirs.tensors[name])
        assert (np.abs(exact - rounded) <= np.abs(exact) * 2.0**-8).all(), name


def test_a_file_is_converted_once_and_a_changed_file_again(file: Path, tmp_path: Path) -> None:
    made = weights.converted(file, tmp_path)
    stamp = os.stat(made / "config.json").st_mtime_ns
    assert weights.converted(file, tmp_path) == made
    assert os.stat(made / "config.json").st_mtime_ns == stamp
    write_tiny_gguf(file, TinyModel(seed=1), "q4_1")
    again = weights.converted(file, tmp_path)
    assert again != made
    assert sorted(path.name for path in again.parent.iterdir()) == sorted([made.name, again.name]), "no scratch is left"


def test_what_cannot_be_converted_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="folder"):
        weights.converted(tmp_path, tmp_path)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(PeerError, match=r"broken\.gguf"):
        weights.converted(broken, tmp_path)
    assert not list((tmp_path / "weights").iterdir())


def test_the_header_is_aligned_and_complete(file: Path, tmp_path: Path) -> None:
    data = (weights.converted(file, tmp_path) / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert size % 8 == 0
    assert max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__") == len(data) - 8 - size
