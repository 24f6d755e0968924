"""GGUF metadata and names become what Hugging Face would have written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forno.errors import CheckpointError, UnsupportedError
from forno.loader.checkpoint import Checkpoint
from forno.loader.dequant import dequantize
from forno.loader.gguf_names import half_split_order, hf_name, open_gguf
from tests.helpers.gguf_writer import (
    TENSOR_TYPES,
    RawTensor,
    Typed,
    encode,
    gguf_name,
    interleave,
    pack_gguf,
    tiny_metadata,
    tiny_tensors,
    write_tiny_gguf,
)
from tests.helpers.tiny import CHAT_TEMPLATE, TinyModel, vocabulary


def opened(path: Path, model: TinyModel, tensors: list[RawTensor] | None = None, **metadata: Any) -> Checkpoint:
    merged = {key: value for key, value in {**tiny_metadata(model), **metadata}.items() if value is not None}
    path.write_bytes(pack_gguf(merged, tiny_tensors(model) if tensors is None else tensors))
    return open_gguf(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.Q8_0.gguf"


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_config_and_weights_come_back(path: Path, arch: str, tied: bool) -> None:
    model = TinyModel(arch=arch, tied=tied)
    checkpoint = opened(path, model)
    expected = model.config()
    config = {key: value for key, value in checkpoint.config.items() if key in expected}
    assert config == {**expected, "rms_norm_eps": pytest.approx(1e-5)}
    weights = model.weights()
    assert checkpoint.tensors.keys() == weights.keys()
    for name, values in weights.items():
        assert checkpoint.tensors[name].name == name
        assert np.array_equal(dequantize(checkpoint.tensors[name]), values), name


@pytest.mark.parametrize("form", TENSOR_TYPES)
def test_a_tiny_model_can_be_written_in_every_format(path: Path, form: str) -> None:
    model = TinyModel(hidden=256, layers=1, heads=4, kv_heads=2, head_dim=64, ffn=256)
    checkpoint = open_gguf(write_tiny_gguf(path, model, form))
    formats = {tensor.format for tensor in checkpoint.tensors.values() if len(tensor.shape) == 2}
    assert formats == {form}
    for tensor in checkpoint.tensors.values():
        assert 0 < float(np.abs(dequantize(tensor)).max()) < 3


def test_everything_else_a_checkpoint_says(path: Path) -> None:
    checkpoint = opened(path, TinyModel(), **{"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.eom_token_id": 2})
    assert checkpoint.name == "tiny.Q8_0"
    assert [file.path for file in checkpoint.files] == [str(path)]
    assert checkpoint.chat_template == CHAT_TEMPLATE
    assert checkpoint.generation_config == {"bos_token_id": 1, "eos_token_id": [2, 0]}
    assert checkpoint.tokenizer.json_path is None
    assert checkpoint.tokenizer.gguf is not None
    assert checkpoint.tokenizer.gguf["tokenizer.ggml.tokens"] == vocabulary()
    assert all(key.startswith("tokenizer.") for key in checkpoint.tokenizer.gguf)


def test_names_translate_both_ways() -> None:
    names = [name for arch in ("qwen2", "qwen3") for name in TinyModel(arch=arch, tied=False).shapes()]
    assert [hf_name(gguf_name(name)) for name in names] == names
    for unknown in (
        "blk.0.ffn_gate_inp.weight",
        "blk.x.attn_q.weight",
        "token_embd_norm.weight",
        "output",
        "blk.0.attn_q.scale",
    ):
        assert hf_name(unknown) == unknown


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (3, 8), (9, 64)])
def test_row_order_undoes_the_converters_permutation(heads: int, head_dim: int) -> None:
    weight = np.random.default_rng(0).standard_normal((heads * head_dim, 5))
    assert np.array_equal(interleave(weight, heads)[half_split_order(heads, head_dim)], weight)


def test_llama_biases_are_reordered_with_their_weights(path: Path) -> None:
    model = TinyModel(layers=1)
    bias = np.arange(model.heads * model.head_dim, dtype=np.float32)
    extra = RawTensor("blk.0.attn_q.bias", bias.shape, "f32", encode(interleave(bias, model.heads), "f32"))
    checkpoint = opened(path, model, [*tiny_tensors(model), extra])
    assert checkpoint.config["attention_bias"] is True
    assert np.array_equal(dequantize(checkpoint.tensors["model.layers.0.self_attn.q_proj.bias"]), bias)


def test_rope_factors_become_part_of_the_config(path: Path) -> None:
    factors = np.linspace(1, 32, 8, dtype=np.float32)
    model = TinyModel()
    checkpoint = opened(path, model, [*tiny_tensors(model), RawTensor("rope_freqs.weight", (8,), "f32", factors.tobytes())])
    assert checkpoint.config["rope_scaling"] == {"rope_type": "factors", "factors": factors.tolist()}
    assert "rope_freqs.weight" not in checkpoint.tensors


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, None),
        ({"llama.rope.scaling.type": "none"}, None),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0}, None),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 128,
                "llama.rope.scaling.attn_factor": 0.5,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 0.5},
        ),
    ],
)
def test_rope_scaling(path: Path, metadata: dict[str, Any], expected: dict[str, Any] | None) -> None:
    assert opened(path, TinyModel(), **metadata).config["rope_scaling"] == expected


def test_defaults_where_a_file_is_brief(path: Path) -> None:
    brief = (
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.freq_base",
        "rope.dimension_count",
    )
    model = TinyModel(kv_heads=4)
    config = opened(path, model, **{f"llama.{key}": None for key in brief}).config
    assert (config["num_key_value_heads"], config["head_dim"], config["rope_theta"]) == (4, 16, 10000.0)


def test_numbers_per_layer_are_one_number_if_equal(path: Path) -> None:
    assert opened(path, TinyModel(), **{"llama.attention.head_count_kv": [2, 2]}).config["num_key_value_heads"] == 2
    with pytest.raises(UnsupportedError, match="differs between layers"):
        opened(path, TinyModel(), **{"llama.attention.head_count_kv": [2, 4]})


def test_a_window_makes_it_a_mistral(path: Path) -> None:
    config = opened(path, TinyModel(), **{"llama.attention.sliding_window": 128}).config
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 128)
    tensors = opened(path, TinyModel(), **{"llama.attention.sliding_window": 128}).tensors
    assert tensors["model.layers.0.self_attn.q_proj.weight"].row_order is not None
    config = opened(path, TinyModel(), **{"llama.attention.sliding_window": 512}).config
    assert config["model_type"] == "llama"  # as long as the context: no window
    with pytest.raises(UnsupportedError, match="mistral models only"):
        opened(path, TinyModel(arch="qwen2"), **{"qwen2.attention.sliding_window": 128})


def test_token_ids_out_of_range_mean_none(path: Path) -> None:
    ids = {"tokenizer.ggml.eos_token_id": Typed("u32", 2**32 - 1), "tokenizer.ggml.bos_token_id": -1}
    checkpoint = opened(path, TinyModel(), **ids)
    assert (checkpoint.config["eos_token_id"], checkpoint.config["bos_token_id"]) == (None, None)
    assert checkpoint.generation_config["eos_token_id"] == []


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"general.architecture": "mamba"}, "architecture 'mamba'; forno supports llama, qwen2, qwen3"),
    ({"llama.expert_count": 8}, "mixture of experts"),
    ({"split.count": 3}, "one part of a split model"),
    ({"llama.attention.value_length": 32}, "value_length is not the head size"),
    ({"llama.rope.dimension_count": 8}, "dimension_count is not the head size"),
]
BIG_HEADS = {f"llama.{key}": 1 << 14 for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")}
DAMAGED: list[tuple[dict[str, Any], str]] = [
    ({"general.architecture": None}, "names no architecture"),
    ({"general.architecture": 7}, "names no architecture"),
    ({"llama.block_count": None}, "block_count is missing"),
    ({"llama.block_count": Typed("u32", 2**32 - 1)}, "block_count is 4294967295"),
    ({"llama.block_count": 0}, "integer from 1"),
    ({"llama.block_count": "two"}, "block_count is 'two'"),
    ({"llama.block_count": True}, "block_count is True"),
    ({"llama.block_count": []}, "differs|integer"),
    ({"llama.embedding_length": Typed("u64", 2**63)}, "embedding_length"),
    ({"llama.attention.head_count": 65}, "head_count is 65"),
    ({"llama.attention.head_count_kv": 5}, "head_count_kv is 5"),
    ({"llama.attention.key_length": 15, "llama.attention.value_length": 15}, "cannot be rotated"),
    ({"llama.attention.key_length": 1 << 30}, "key_length"),
    # Rows that would take 256 GiB, each number believable by itself.
    ({"llama.embedding_length": 1 << 22, "llama.attention.head_count": 1 << 22, **BIG_HEADS}, "expected 68719476736"),
    ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon is nan"),
    ({"llama.rope.freq_base": 0.0}, "freq_base is 0.0"),
    ({"llama.rope.freq_base": float("inf")}, "freq_base is inf"),
    ({"llama.rope.scaling.type": 3}, "scaling.type is 3"),
    ({"tokenizer.chat_template": b"\xff"}, "chat_template is not valid UTF-8"),
]


@pytest.mark.parametrize(("metadata", "message"), UNSUPPORTED)
def test_what_is_not_supported_says_so(path: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        opened(path, TinyModel(), **metadata)


@pytest.mark.parametrize(("metadata", "message"), DAMAGED)
def test_impossible_metadata_is_a_named_error(path: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedError), match=message):
        opened(path, TinyModel(), **metadata)


def with_tensor(name: str, shape: tuple[int, ...], values: np.ndarray | None = None) -> list[RawTensor]:
    values = np.zeros(shape, np.float32) if values is None else values
    return [t for t in tiny_tensors(TinyModel()) if t.name != name] + [RawTensor(name, shape, "f32", encode(values, "f32"))]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (tiny_tensors(TinyModel())[1:], "no token_embd.weight"),
        (with_tensor("rope_freqs.weight", (9,)), r"shape (9,), expected (8,)"),
        (with_tensor("rope_freqs.weight", (8,)), "not positive numbers"),
        (with_tensor("rope_freqs.weight", (8,), np.full(8, np.nan, np.float32)), "not positive numbers"),
        (with_tensor("blk.0.attn_k.weight", (48, 64)), "blk.0.attn_k.weight has 48 rows, expected 32"),
        (with_tensor("blk.1.attn_k.weight", (48, 64)), "blk.1.attn_k.weight has 48 rows, expected 32"),
        ([*tiny_tensors(TinyModel()), *with_tensor("blk.00.attn_norm.weight", (64,))[-1:]], "two tensors are named"),
    ],
)
def test_impossible_tensors_are_named_errors(path: Path, tensors: list[RawTensor], message: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        opened(path, TinyModel(), tensors)


def test_a_head_size_of_its_own_survives(path: Path) -> None:
    model = replace(TinyModel(arch="qwen3"), head_dim=32)
    checkpoint = opened(path, model)
    assert checkpoint.config["head_dim"] == 32
    assert checkpoint.tensors["model.layers.0.self_attn.q_proj.weight"].row_order is None
