"""W8A8 checkpoints: what is read, and that everything else is refused by name."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.weights import quantize_channels
from benchmarks.writers import W8A8_CONFIG
from forno.errors import CheckpointError, UnsupportedError
from forno.loader.compressed_tensors import check_scheme
from forno.loader.dequant import dequantize
from forno.loader.huggingface import open_directory
from tests.helpers.safetensors_writer import write_tiny_w8a8
from tests.helpers.tiny import TinyModel

WEIGHT = "model.layers.1.mlp.down_proj.weight"
Config = dict[str, Any]


def weights_scheme(config: Config) -> Config:
    scheme: Config = config["config_groups"]["group_0"]["weights"]
    return scheme


def test_int8_weights_come_back_with_their_scales_and_the_rest_in_bf16(tmp_path: Path) -> None:
    model = TinyModel()
    checkpoint = open_directory(write_tiny_w8a8(tmp_path / "m", model))
    assert set(checkpoint.tensors) == set(model.weights())
    for name, values in model.weights().items():
        tensor = checkpoint.tensors[name]
        if "_proj" in name:
            codes, stored = quantize_channels(values)
            scale = (stored.astype(np.uint32) << 16).view(np.float32)
            assert tensor.format == "w8a8"
            assert np.array_equal(dequantize(tensor), codes * scale)
        else:
            assert tensor.format == "bf16"
            assert tensor.scales is None


@pytest.mark.parametrize("shape", [(64,), (64, 1)])
def test_scales_of_either_shape_and_zero_zero_points(tmp_path: Path, shape: tuple[int, ...]) -> None:
    def change(tensors: dict[str, tuple[str, np.ndarray]]) -> None:
        dtype, scale = tensors[WEIGHT + "_scale"]
        tensors[WEIGHT + "_scale"] = dtype, scale.reshape(shape)
        tensors[WEIGHT + "_zero_point"] = "I8", np.zeros((64, 1), np.int8)

    tensors = open_directory(write_tiny_w8a8(tmp_path / "m", change=change)).tensors
    scales = tensors[WEIGHT].scales
    assert scales is not None
    assert scales.shape == (64,)
    assert WEIGHT + "_zero_point" not in tensors


def drop_scale(t: dict[str, tuple[str, np.ndarray]]) -> None:
    del t[WEIGHT + "_scale"]


def one_scale(t: dict[str, tuple[str, np.ndarray]]) -> None:
    t[WEIGHT + "_scale"] = "BF16", np.ones((1,), np.uint16)


def nan_scale(t: dict[str, tuple[str, np.ndarray]]) -> None:
    t[WEIGHT + "_scale"] = "BF16", np.full((64, 1), 0x7FC0, np.uint16)


def negative_scale(t: dict[str, tuple[str, np.ndarray]]) -> None:
    t[WEIGHT + "_scale"] = "F32", np.full((64,), -1, np.float32)


def int8_scale(t: dict[str, tuple[str, np.ndarray]]) -> None:
    t[WEIGHT + "_scale"] = "I8", np.ones((64, 1), np.int8)


def stray_scale(t: dict[str, tuple[str, np.ndarray]]) -> None:
    t["model.norm.weight_scale"] = "F32", np.ones((64,), np.float32)


def int8_vector(t: dict[str, tuple[str, np.ndarray]]) -> None:
    t["model.norm.weight"] = "I8", np.ones((64,), np.int8)
    t["model.norm.weight_scale"] = "F32", np.ones((64,), np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_scale, f"{WEIGHT}' has no scale"),
        (one_scale, "needs one scale per output"),
        (nan_scale, "negative or not finite"),
        (negative_scale, "negative or not finite"),
        (int8_scale, "is int8; scales are floats"),
        (stray_scale, "belongs to no int8 weight"),
        (int8_vector, "needs one scale per output"),
    ],
)
def test_malformed_scales_are_named(tmp_path: Path, change: Callable[[Any], None], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_directory(write_tiny_w8a8(tmp_path / "m", change=change))


def test_zero_points_are_refused(tmp_path: Path) -> None:
    def change(t: dict[str, tuple[str, np.ndarray]]) -> None:
        t[WEIGHT + "_zero_point"] = "I8", np.ones((64, 1), np.int8)

    with pytest.raises(UnsupportedError, match="_zero_point' is not zero"):
        open_directory(write_tiny_w8a8(tmp_path / "m", change=change))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_bits", 4),
        ("num_bits", 8.0),
        ("type", "float"),
        ("symmetric", False),
        ("symmetric", 1),
        ("strategy", "group"),
        ("dynamic", "local"),
        ("group_size", 128),
    ],
)
@pytest.mark.parametrize("part", ["weights", "input_activations"])
def test_other_schemes_are_refused_by_field(part: str, field: str, value: Any) -> None:
    config = copy.deepcopy(W8A8_CONFIG)
    config["config_groups"]["group_0"][part][field] = value
    with pytest.raises(UnsupportedError, match=rf"group_0\.{part}\.{field} is"):
        check_scheme(config, "config.json")
    if field != "group_size":
        del config["config_groups"]["group_0"][part][field]
        with pytest.raises(UnsupportedError, match=f"{field} is 'absent'"):
            check_scheme(config, "config.json")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), "pack-quantized", "format is 'pack-quantized'"),
        (("config_groups", "group_0", "format"), "float-quantized", "format is 'float-quantized'"),
        (("config_groups", "group_0", "input_activations"), None, "input_activations is None"),
        (("config_groups", "group_0", "output_activations"), {"num_bits": 8}, "output_activations is"),
        (("config_groups", "group_0", "input_activations", "dynamic"), False, "input_activations.dynamic is False"),
        (("kv_cache_scheme",), {"num_bits": 8}, "kv_cache_scheme is"),
        (("sparsity_config",), {"format": "sparse-24-bitmask"}, "sparsity_config is"),
    ],
)
def test_what_else_a_config_may_ask_for_is_refused(path: tuple[str, ...], value: Any, message: str) -> None:
    config = copy.deepcopy(W8A8_CONFIG)
    parent = config
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    with pytest.raises(UnsupportedError, match=message):
        check_scheme(config, "config.json")


@pytest.mark.parametrize("groups", [None, {}, [], {"group_0": 1}])
def test_malformed_groups(groups: Any) -> None:
    with pytest.raises(CheckpointError, match="config_groups has to be"):
        check_scheme(W8A8_CONFIG | {"config_groups": groups}, "config.json")


def test_dense_sparsity_and_fields_of_newer_writers_are_no_obstacle() -> None:
    config = copy.deepcopy(W8A8_CONFIG) | {"sparsity_config": {"format": "dense"}, "version": "0.12.2"}
    weights_scheme(config)["observer"] = "mse"
    check_scheme(config, "config.json")


def test_int8_without_a_quantization_config_is_refused(tmp_path: Path) -> None:
    directory = write_tiny_w8a8(tmp_path / "m")
    config = json.loads((directory / "config.json").read_text())
    del config["quantization_config"]
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match=r"is int8, but config\.json has no quantization_config"):
        open_directory(directory)
