"""Model directories: which files are read and what they become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forno.errors import CheckpointError, ModelError, UnsupportedError
from forno.loader.dequant import dequantize
from forno.loader.huggingface import open_directory
from tests.helpers.safetensors_writer import write_tiny_directory
from tests.helpers.tiny import CHAT_TEMPLATE, TinyModel


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_directory(tmp_path / "Tiny-1M")


def put(directory: Path, name: str, document: Any) -> None:
    (directory / name).write_text(json.dumps(document))


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_directory_comes_back(tmp_path: Path, arch: str, shards: int) -> None:
    model = TinyModel(arch=arch, tied=False)
    checkpoint = open_directory(write_tiny_directory(tmp_path / "m", model, shards=shards))
    assert checkpoint.config == model.config()
    assert checkpoint.name == "m"
    assert len(checkpoint.files) == shards + (shards > 1), "an index too"
    for name, values in model.weights().items():
        assert np.array_equal(dequantize(checkpoint.tensors[name]), values)
        assert checkpoint.tensors[name].row_order is None


def test_tokenizer_template_and_generation_config(directory: Path) -> None:
    put(directory, "special_tokens_map.json", {"bos_token": "overridden", "pad_token": "<pad>"})
    checkpoint = open_directory(directory)
    assert checkpoint.tokenizer.json_path == str(directory / "tokenizer.json")
    assert checkpoint.tokenizer.gguf is None
    assert checkpoint.tokenizer.config["bos_token"] == "<|im_start|>"
    assert checkpoint.tokenizer.config["pad_token"] == "<pad>"
    assert checkpoint.chat_template == CHAT_TEMPLATE
    assert checkpoint.generation_config["eos_token_id"] == [2]


def test_templates_by_precedence(directory: Path) -> None:
    def named(*names: str) -> list[dict[str, str]]:
        return [{"name": name, "template": f"the {name} one"} for name in names]

    put(directory, "tokenizer_config.json", {"chat_template": named("tool_use", "default")})
    assert open_directory(directory).chat_template == "the default one"
    put(directory, "tokenizer_config.json", {"chat_template": named("tool_use")})
    assert open_directory(directory).chat_template is None
    put(directory, "chat_template.json", {"chat_template": "from json"})
    assert open_directory(directory).chat_template == "from json"
    (directory / "chat_template.jinja").write_text("from jinja")
    assert open_directory(directory).chat_template == "from jinja"
    (directory / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match="not UTF-8"):
        open_directory(directory)


def test_the_rest_is_optional(directory: Path) -> None:
    for name in ("generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        (directory / name).unlink()
    checkpoint = open_directory(directory)
    assert checkpoint.chat_template is None
    assert checkpoint.generation_config == {}
    assert checkpoint.tokenizer.json_path == str(directory / "tokenizer.json")


def test_a_hub_snapshot_is_named_after_its_repository(tmp_path: Path) -> None:
    directory = tmp_path / "models--Org--Tiny-1M" / "snapshots" / ("0" * 40)
    assert open_directory(write_tiny_directory(directory)).name == "Org/Tiny-1M"


def test_quantized_directories_are_refused_by_method(directory: Path) -> None:
    put(directory, "config.json", TinyModel().config() | {"quantization_config": {"quant_method": "gptq"}})
    with pytest.raises(UnsupportedError, match="'gptq'; forno reads"):
        open_directory(directory)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": NaN}', b'{"a":' * 50_000, b"\xff"])
def test_bad_json_in_any_file_is_a_named_error(directory: Path, name: str, content: bytes) -> None:
    (directory / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        open_directory(directory)


def test_no_config_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: No such file"):
        open_directory(tmp_path)


def test_a_template_of_another_type_is_a_named_error(directory: Path) -> None:
    put(directory, "tokenizer_config.json", {"chat_template": 5})
    with pytest.raises(CheckpointError, match="chat_template is int"):
        open_directory(directory)
