"""A path becomes a checkpoint, whatever it names; a checkpoint is held against a program."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forno.errors import CheckpointError, ModelError
from forno.loader.checkpoint import Checkpoint, Tensor
from forno.loader.dequant import dequantize
from forno.loader.open import check_tensors, open_checkpoint
from forno.models import build_program
from forno.program.program import Program
from tests.helpers.gguf_writer import write_tiny_gguf
from tests.helpers.safetensors_writer import write_tiny_directory
from tests.helpers.tiny import TinyModel


def test_the_same_model_in_both_formats_has_the_same_weights(tmp_path: Path) -> None:
    gguf = open_checkpoint(write_tiny_gguf(tmp_path / "a.gguf"))
    directory = open_checkpoint(str(write_tiny_directory(tmp_path / "hf")))
    assert gguf.tensors.keys() == directory.tensors.keys()
    for name, tensor in gguf.tensors.items():
        assert np.array_equal(dequantize(tensor), dequantize(directory.tensors[name]))


def test_a_directory_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "a.gguf")
    assert open_checkpoint(tmp_path).name == "a"
    write_tiny_gguf(tmp_path / "b.gguf")
    with pytest.raises(ModelError, match=r"several GGUF files; name one of them: a.gguf, b.gguf"):
        open_checkpoint(tmp_path)


def test_a_gguf_file_needs_no_suffix(tmp_path: Path) -> None:
    assert open_checkpoint(write_tiny_gguf(tmp_path / "blob")).config["model_type"] == "llama"


def test_other_paths_are_named_errors(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").touch()
    (tmp_path / "x.bin").write_bytes(b"PK\x03\x04")
    for path, message in (
        (tmp_path, "no config.json and no GGUF file"),
        (tmp_path / "x.safetensors", "name the directory"),
        (tmp_path / "x.bin", "neither a GGUF file nor a directory"),
        (tmp_path / "absent", "No such file"),
    ):
        with pytest.raises(ModelError, match=message):
            open_checkpoint(path)


def program_of(**changes: Any) -> Program:
    return build_program(TinyModel(**changes).config())


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return open_checkpoint(write_tiny_gguf(tmp_path / "a.gguf"))


def extended(checkpoint: Checkpoint, **tensors: Tensor) -> Checkpoint:
    return replace(checkpoint, tensors={**checkpoint.tensors, **tensors})


def test_a_whole_checkpoint_passes(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    assert check_tensors(program_of(), checkpoint) == ()
    assert not caplog.records


def test_a_missing_tensor_is_named(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match=r"no tensor 'lm_head.weight' of shape \(271, 64\)"):
        check_tensors(program_of(tied=False), checkpoint)


def test_a_wrong_shape_is_named_with_both(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match=r"mlp.gate_proj.weight' has the shape \(96, 64\), the model needs \(128, 64\)"):
        check_tensors(program_of(ffn=128), checkpoint)


def test_extra_tensors_are_reported_in_one_warning(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    tensor = checkpoint.tensors["model.norm.weight"]
    extra = {f"extra.{i}": tensor for i in range(5)}
    with caplog.at_level(logging.WARNING):
        assert check_tensors(program_of(), extended(checkpoint, **extra)) == tuple(extra)
    (record,) = caplog.records
    assert "5 tensors are not used by the model: extra.0, extra.1, extra.2, ..." in record.getMessage()


def test_known_constants_and_the_copy_of_a_tied_head_are_silent(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    tensor = checkpoint.tensors["model.norm.weight"]
    names = ("model.layers.0.self_attn.rotary_emb.inv_freq", "rope_freqs.weight", "lm_head.weight")
    assert check_tensors(program_of(), extended(checkpoint, **dict.fromkeys(names, tensor))) == ()
    assert not caplog.records
