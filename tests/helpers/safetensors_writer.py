"""Writes safetensors files and Hugging Face model directories for tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.weights import held_as, quantize_channels, to_bf16
from benchmarks.writers import W8A8_CONFIG
from tests.helpers.gguf_writer import encode
from tests.helpers.tiny import CHAT_TEMPLATE, MERGES, SPECIAL_TOKENS, TinyModel, vocabulary


def pack_safetensors(tensors: Mapping[str, np.ndarray], form: str = "f32") -> bytes:
    """A safetensors file with all ``tensors`` in ``form``: f32, f16 or bf16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, values in tensors.items():
        raw = encode(values, form)
        offsets = [len(body), len(body) + len(raw)]
        header[name] = {"dtype": form.upper(), "shape": list(values.shape), "data_offsets": offsets}
        body += raw
    return pack_header(header) + body


def pack_tensors(tensors: Mapping[str, tuple[str, np.ndarray]]) -> bytes:
    """A safetensors file of values as they are, each with its dtype."""
    header: dict[str, Any] = {}
    body = b""
    for name, (dtype, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(body), len(body) + values.nbytes]}
        body += values.tobytes()
    return pack_header(header) + body


def pack_header(header: Any) -> bytes:
    """Any JSON value as a safetensors header, padded with spaces to 8 bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def tokenizer_json() -> dict[str, Any]:
    """``tokenizer.json`` of the tiny byte-level BPE."""
    special = [
        {"id": i, "content": t, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        for i, t in enumerate(SPECIAL_TOKENS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(vocabulary())}, "merges": list(MERGES)},
    }


def write_tiny_directory(path: Path, model: TinyModel | None = None, form: str = "f32", *, shards: int = 1) -> Path:
    """Write config, tokenizer and weights (in ``shards`` files with an index, if more than one) into ``path``."""
    model = model or TinyModel()
    path.mkdir(parents=True, exist_ok=True)
    documents = {
        "config.json": model.config(),
        "generation_config.json": {"eos_token_id": [2], "bos_token_id": 1},
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": {"chat_template": CHAT_TEMPLATE, "eos_token": "<|im_end|>", "bos_token": "<|im_start|>"},
    }
    for name, document in documents.items():
        (path / name).write_text(json.dumps(document))
    weights = model.weights()
    if shards == 1:
        (path / "model.safetensors").write_bytes(pack_safetensors(weights, form))
        return path
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    weight_map = {name: names[i % shards] for i, name in enumerate(weights)}
    for file in names:
        part = {name: weights[name] for name, where in weight_map.items() if where == file}
        (path / file).write_bytes(pack_safetensors(part, form))
    index = {"metadata": {"total_size": sum(w.nbytes for w in weights.values())}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def write_tiny_w8a8(
    path: Path, model: TinyModel | None = None, change: Callable[[dict[str, tuple[str, np.ndarray]]], None] = lambda _: None
) -> Path:
    """A directory in int8 (compressed-tensors): linears of the layers with a bf16 scale per output, the rest in bf16.

    ``change`` may alter the tensors, name to (dtype, values), before they are written.
    """
    model = model or TinyModel()
    write_tiny_directory(path, model)
    (path / "config.json").write_text(json.dumps(model.config() | {"quantization_config": W8A8_CONFIG}))
    tensors: dict[str, tuple[str, np.ndarray]] = {}
    for name, values in model.weights().items():
        if held_as("w8a8", name) == "w8a8":
            codes, scales = quantize_channels(values)
            tensors |= {name: ("I8", codes), f"{name}_scale": ("BF16", scales)}
        else:
            tensors[name] = ("BF16", to_bf16(values))
    change(tensors)
    (path / "model.safetensors").write_bytes(pack_tensors(tensors))
    return path
