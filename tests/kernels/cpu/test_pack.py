"""Packing: every matrix as the program wants it, vectors as float32, source pages given back, bad tensors named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forno import _native
from forno.errors import CheckpointError
from forno.kernels.cpu.pack import PackedWeights, as_vector, is_mapped, pack_weights
from forno.loader.dequant import dequantize
from forno.loader.files import map_file
from tests.helpers.runners import Model, stored


@pytest.mark.parametrize("format", ["f32", "bf16", "q8_0", "q4_1"])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_matrix_holds_its_tensor(format: str, threads: int) -> None:
    model = Model.tiny("llama", format)
    packed = pack_weights(model.program, model.tensors, threads)
    for key, matrix in packed.matrices.items():
        expected = np.concatenate([dequantize(model.tensors[name]) for name in key])
        assert (matrix.dequantize() == expected).all(), key
    names = {name for key in packed.matrices for name in key} | set(packed.vectors)
    assert names == set(model.program.weights)
    assert packed.bytes > sum(v.nbytes for v in packed.vectors.values())


def test_a_tied_head_is_packed_once() -> None:
    model = Model.tiny("qwen2")
    packed = pack_weights(model.program, model.tensors, 1)
    assert [key for key in packed.matrices if "embed_tokens" in key[0]] == [("model.embed_tokens.weight",)]
    assert not any("lm_head" in key[0] for key in packed.matrices)


def test_float_weights_are_quantized_where_the_program_says_so() -> None:
    model = Model.tiny()
    matrices = {n: "q8_0" for n, w in model.program.weights.items() if len(w.shape) == 2}
    packed = pack_weights(model.program.with_formats(matrices), model.tensors, 1)
    matrix = packed.matrix("model.embed_tokens.weight")
    given = model.tensors["model.embed_tokens.weight"].data.view(np.float32).reshape(matrix.n, matrix.k)
    assert matrix.format == "q8_0"
    assert 0 < np.abs(matrix.dequantize() - given).max() < np.abs(given).max() / 200


def test_gate_and_up_biases_follow_the_interleaved_panels() -> None:
    gate, up = np.arange(40, dtype=np.float32), np.arange(100, 140, dtype=np.float32)
    bias = PackedWeights({}, {"gate": gate, "up": up}).gate_up_bias("gate", "up", 40)
    assert bias is not None
    panels = bias.reshape(2, 2, 32)  # panel, gate or up, output
    assert (panels[:, 0].reshape(-1)[:40] == gate).all()
    assert (panels[:, 1].reshape(-1)[:40] == up).all()
    assert not panels[1, :, 8:].any()
    half = PackedWeights({}, {"up": up}).gate_up_bias(None, "up", 40)
    assert half is not None
    assert not half.reshape(2, 2, 32)[:, 0].any()
    assert PackedWeights({}).gate_up_bias(None, None, 40) is None


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
def test_vectors_become_float32(format: str) -> None:
    values = np.array([1.0, -0.5, 2.0], np.float32)  # exact in all three
    tensor = replace(stored("v", values[None], format), shape=(3,))
    assert (as_vector("v", tensor) == values).all()
    assert (as_vector("v", replace(tensor, row_order=np.array([2, 0, 1], np.int32))) == values[[2, 0, 1]]).all()


def test_bad_tensors_are_named() -> None:
    model = Model.tiny()
    name = "model.norm.weight"
    for tensors in (
        {n: t for n, t in model.tensors.items() if n != name},
        {**model.tensors, name: replace(model.tensors[name], shape=(95,))},
        {**model.tensors, name: replace(model.tensors[name], format="q8_0")},
    ):
        with pytest.raises(CheckpointError, match=name):
            pack_weights(model.program, tensors, 1)
    gate = "model.layers.0.mlp.gate_proj.weight"
    short = replace(model.tensors[gate], data=model.tensors[gate].data[:-4])
    with pytest.raises(CheckpointError, match="gate_proj"):
        pack_weights(model.program, {**model.tensors, gate: short}, 2)


def test_mapped_sources_leave_no_pages_behind_and_others_keep_theirs(tmp_path: Path) -> None:
    """Read again, both kinds of source hold what they held."""
    model = Model.tiny("llama", "bf16")
    name = "model.layers.0.mlp.down_proj.weight"
    held = model.tensors[name]
    path = tmp_path / "weights"
    path.write_bytes(b"x" * 100 + held.data.tobytes() + b"y" * 8192)
    mapped = replace(held, data=map_file(path)[100 : 100 + held.data.size])
    before = {n: t.data.copy() for n, t in model.tensors.items()}
    packed = pack_weights(model.program, {**model.tensors, name: mapped}, 2)
    assert (packed.matrix(name).dequantize() == dequantize(held)).all()
    assert (mapped.data == before[name]).all()
    assert all((t.data == before[n]).all() for n, t in model.tensors.items())


def test_only_mapped_files_are_given_back(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"x" * 9000)
    assert is_mapped(map_file(path)[100:].view(np.uint16))
    assert not is_mapped(np.ones(9000, np.uint8)[1:])
    assert not is_mapped(np.frombuffer(b"x" * 9000, np.uint8))


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_absurd_thread_counts_are_refused(threads: int) -> None:
    with pytest.raises(ValueError, match="threads"):
        _native.pack_all([], threads)
    assert _native.pack_all([], 1) is None
