"""safetensors: values come back, shards stay in their directory, damage is a named error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from forno.errors import CheckpointError, FornoError, ModelError, UnsupportedError
from forno.loader.dequant import dequantize
from forno.loader.safetensors import INDEX_NAME, read_directory, read_safetensors
from tests.helpers.mutate import DEADLINE, damaged
from tests.helpers.safetensors_writer import pack_header, pack_safetensors, write_tiny_directory
from tests.helpers.tiny import TinyModel


@pytest.mark.parametrize("form", ["f32", "f16", "bf16"])
def test_tensors_come_back(tmp_path: Path, form: str) -> None:
    values = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b.c": np.array([0.5, -2], np.float32)}
    path = tmp_path / "x.safetensors"
    path.write_bytes(pack_safetensors(values, form))
    tensors = read_safetensors(path)
    assert tensors.keys() == values.keys()
    for name, tensor in tensors.items():
        assert tensor.format == form
        assert not tensor.data.flags.owndata
        assert np.array_equal(dequantize(tensor), values[name])


def test_an_odd_header_leaves_data_unaligned_but_right(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header += b" " * ((1 - len(header)) % 4)
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + np.array([1, 2], np.float32).tobytes())
    assert dequantize(read_safetensors(path)["a"]).tolist() == [1, 2]


def entry(dtype: Any = "F32", shape: Any = (2, 2), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


TWO = {"w": entry()["w"], "v": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}}
BAD_FILES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is empty"),
    "short": (b"\1\0\0", "too few"),
    "header too long": (b"\xff" * 8 + b"{}", "cannot be right"),
    "header past the end": (b"\x40" + bytes(7) + b"{}", "cannot be right"),
    "header not JSON": (pack_header(b"hello"), "not valid JSON"),
    "header a list": (pack_header([]), "expected a JSON object"),
    "header nested": (pack_header(b'{"a":' * 50_000), "nested too deeply"),
    "name twice": (pack_header(b'{"w": 1, "w": 2}'), "'w' appears twice"),
    "NaN": (pack_header(b'{"w": NaN}'), "NaN"),
    "entry a number": (pack_header({"w": 5}), "malformed"),
    "no dtype": (pack_header({"w": {"shape": [], "data_offsets": [0, 4]}}) + bytes(4), "malformed"),
    "shape a number": (pack_header(entry(shape=4)) + bytes(16), "malformed"),
    "negative dimension": (pack_header(entry(shape=(-2, -2))) + bytes(16), "malformed"),
    "fractional dimension": (pack_header(entry(shape=(2.0, 2))) + bytes(16), "malformed"),
    "boolean dimension": (pack_header(entry(shape=(True, 4))) + bytes(16), "malformed"),
    "many dimensions": (pack_header(entry(shape=(1,) * 9)) + bytes(16), "malformed"),
    "three offsets": (pack_header(entry(offsets=(0, 8, 16))) + bytes(16), "malformed"),
    "offsets reversed": (pack_header(entry(offsets=(16, 0))) + bytes(16), "lies at bytes 16 to 0"),
    "truncated": (pack_header(entry()) + bytes(15), "truncated or damaged"),
    "offsets huge": (pack_header(entry(offsets=((1 << 63) - 17, (1 << 63) - 1))) + bytes(16), "truncated or damaged"),
    "wrong size": (pack_header(entry(shape=(2, 3))) + bytes(16), "cannot have 16 bytes"),
    "product wraps": (pack_header(entry(shape=(1 << 32, 1 << 32, 4))) + bytes(16), "cannot have 16 bytes"),
    "overlap": (pack_header(TWO) + bytes(16), "overlaps"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_a_named_error(tmp_path: Path, case: str) -> None:
    data, message = BAD_FILES[case]
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read_safetensors(path)


@pytest.mark.parametrize("dtype", ["F64", "I64", "F8_E4M3", "U8"])
def test_other_dtypes_are_named(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(pack_header(entry(dtype=dtype)) + bytes(16))
    with pytest.raises(UnsupportedError, match=f"'w' has the dtype {dtype}; forno supports F32, F16, BF16"):
        read_safetensors(path)


def test_buffers_of_old_exporters_are_left_out_whatever_their_dtype(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    path = tmp_path / "x.safetensors"
    path.write_bytes(pack_header({name: {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}) + bytes(8))
    assert read_safetensors(path) == {}


MODEL = TinyModel(hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, ffn=16)
FILE = pack_safetensors(MODEL.weights(), "bf16")
HEADER = 8 + int.from_bytes(FILE[:8], "little")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("safetensors") / "x.safetensors"


@given(damaged(FILE, HEADER))
@settings(max_examples=300, deadline=DEADLINE)
def test_a_damaged_file_opens_or_is_a_named_error(scratch: Path, data: bytes) -> None:
    scratch.write_bytes(data)
    try:
        tensors = read_safetensors(scratch)
    except FornoError:
        return
    for tensor in tensors.values():
        assert dequantize(tensor).shape == tensor.shape


def test_shards_are_put_together(tmp_path: Path) -> None:
    write_tiny_directory(tmp_path, MODEL, shards=3)
    tensors, files = read_directory(tmp_path)
    assert {name: t.shape for name, t in tensors.items()} == MODEL.shapes()
    shards = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert [Path(file.path).name for file in files] == [*shards, INDEX_NAME]
    for name, values in MODEL.weights().items():
        assert np.array_equal(dequantize(tensors[name]), values)


@pytest.mark.parametrize(
    "file",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/../../x.safetensors",
        "..\\x.safetensors",
        "x\0.safetensors",
        "x.bin",
        "",
        7,
        None,
        {},
    ],
)
def test_an_index_cannot_leave_its_directory(tmp_path: Path, file: Any) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    (tmp_path / "x.safetensors").write_bytes(FILE)
    (directory / INDEX_NAME).write_text(json.dumps({"weight_map": {"w": file}}))
    with pytest.raises(CheckpointError, match="file in the same directory"):
        read_directory(directory)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "weight_map has to be"),
        ({"weight_map": []}, "weight_map has to be"),
        ({"weight_map": {"w": "gone.safetensors"}}, "names gone.safetensors, which is not there"),
        ({"weight_map": {"nobody": "a.safetensors"}}, "says that 'nobody' is in a.safetensors, but it is not"),
    ],
)
def test_a_bad_index_is_a_named_error(tmp_path: Path, index: Any, message: str) -> None:
    (tmp_path / "a.safetensors").write_bytes(FILE)
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=message):
        read_directory(tmp_path)


def test_which_files_are_taken(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no safetensors weights"):
        read_directory(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UnsupportedError, match="only PyTorch"):
        read_directory(tmp_path)
    (tmp_path / "a.safetensors").write_bytes(FILE)
    assert [file.path for file in read_directory(tmp_path)[1]] == [str(tmp_path / "a.safetensors")]
    (tmp_path / "b.safetensors").write_bytes(FILE)
    with pytest.raises(ModelError, match="several safetensors files"):
        read_directory(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(FILE)
    assert [file.path for file in read_directory(tmp_path)[1]] == [str(tmp_path / "model.safetensors")]
