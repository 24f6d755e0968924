"""Writes models to disk as other programs do: GGUF in bf16, and Hugging Face directories in bf16 or W8A8 (compressed-tensors).

Knows neither where weights come from nor who reads them. The GGUF side is the ``gguf`` package; safetensors is a JSON header
and raw values. Whatever is written appears under its name only once it is complete.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from benchmarks.weights import held_as, quantize_channels, to_bf16
from forno.text.gguf_tokenizer import build

_TOKENS = "tokenizer.ggml."


@dataclass(frozen=True, slots=True)
class Source:
    """A model to write."""

    config: Mapping[str, Any]
    """``config.json`` as Hugging Face writes it."""
    shapes: Mapping[str, tuple[int, ...]]
    """Hugging Face name to shape of every weight."""
    weight: Callable[[str], np.ndarray]
    """The float32 values of a weight, rows in Hugging Face's order."""
    tokenizer: Mapping[str, Any]
    """``tokenizer.*`` metadata of a GGUF file, with the full key names."""


@contextmanager
def complete(path: Path) -> Iterator[Path]:
    """A scratch path beside ``path`` that is moved there at the end; nothing stays behind if writing fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".part-") as scratch:
        part = Path(scratch) / path.name
        yield part
        part.rename(path)


# --- GGUF ---


def write_gguf(path: Path, source: Source) -> Path:
    """Matrices in bf16, vectors in float32; for architectures whose q and k rows GGUF keeps in Hugging Face's order."""
    config, arch = source.config, str(source.config["model_type"])
    assert arch != "llama", "GGUF reorders llama's q and k rows"
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config["num_hidden_layers"])
    with complete(path) as part:
        writer = gguf.GGUFWriter(part, arch)
        _add_sizes(writer, config)
        for key, value in source.tokenizer.items():
            _add(writer, key, value)
        for name in source.shapes:
            values, (stem, _, kind) = source.weight(name), name.rpartition(".")
            target = f"{names.get_name(stem)}.{kind}"
            if values.ndim == 1:
                writer.add_tensor(target, values)
            else:
                writer.add_tensor(target, to_bf16(values).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return path


def _add_sizes(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Any metadata value with the type that its Python type suggests."""
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_string(key, value)


# --- Hugging Face ---


def write_directory(path: Path, source: Source, *, w8a8: bool = False) -> Path:
    """A model directory: config, tokenizer, and weights in bf16, or the layers' linears in int8 with a scale per output."""
    with complete(path) as part:
        part.mkdir()
        config = dict(source.config) | {"torch_dtype": "bfloat16"}
        if w8a8:
            config["quantization_config"] = W8A8_CONFIG
        write_json(part / "config.json", config)
        write_json(part / "tokenizer_config.json", _tokenizer_config(source.tokenizer))
        eos = source.tokenizer.get(_TOKENS + "eos_token_id")
        write_json(part / "generation_config.json", {} if eos is None else {"eos_token_id": [eos]})
        tokenizer, _ = build(source.tokenizer)
        tokenizer.save(str(part / "tokenizer.json"))
        write_safetensors(part / "model.safetensors", _tensors(source, w8a8))
    return path


W8A8_CONFIG: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True},
            "output_activations": None,
        }
    },
    "kv_cache_scheme": None,
}
"""What llm-compressor writes for its W8A8 scheme."""


def _tensors(source: Source, w8a8: bool) -> Iterator[tuple[str, str, np.ndarray]]:
    """Name, dtype and values of every tensor of the file."""
    for name in source.shapes:
        values = source.weight(name)
        if w8a8 and held_as("w8a8", name) == "w8a8":
            codes, scales = quantize_channels(values)
            yield name, "I8", codes
            yield f"{name}_scale", "BF16", scales
        else:
            yield name, "BF16", to_bf16(values)


def write_safetensors(path: Path, tensors: Iterable[tuple[str, str, np.ndarray]]) -> None:
    """One file of (name, safetensors' dtype, values); tensors are taken one at a time, so the header that precedes them is
    known last."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    with tempfile.TemporaryFile(dir=path.parent) as body, path.open("wb") as out:
        end = 0
        for name, dtype, values in tensors:
            body.write(values.tobytes())
            begin, end = end, end + values.nbytes
            header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # values stay aligned
        out.write(len(text).to_bytes(8, "little") + text)
        body.seek(0)
        while chunk := body.read(1 << 24):
            out.write(chunk)


def _tokenizer_config(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    tokens = tokenizer[_TOKENS + "tokens"]
    found: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False}
    for name in ("bos", "eos"):
        index = tokenizer.get(f"{_TOKENS}{name}_token_id")
        if index is not None:
            found[f"{name}_token"] = tokens[index]
    if template := tokenizer.get("tokenizer.chat_template"):
        found["chat_template"] = template
    return found


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(dict(value), indent=1), encoding="utf-8")
