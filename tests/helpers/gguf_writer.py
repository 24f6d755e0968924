"""Writes GGUF files for tests: arbitrary metadata and tensors, or a complete tiny model in any supported format.

Written from the specification, apart from the reader, so that each checks the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.weights import ENCODABLE, encode, random_weights
from tests.helpers.tiny import CHAT_TEMPLATE, MERGES, SPECIAL_TOKENS, TinyModel, vocabulary

TENSOR_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "q4_k": 12,
    "q5_k": 13,
    "q6_k": 14,
    "iq4_nl": 20,
    "bf16": 30,
}
VALUE_TYPES = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "u64": 10, "i64": 11, "f64": 12}
_STRUCTS = dict(zip(VALUE_TYPES, "BbHhIif?Qqd", strict=True))


@dataclass(frozen=True, slots=True)
class Typed:
    """A metadata scalar, or a list of them, with an explicit type of VALUE_TYPES."""

    kind: str
    value: Any


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as it goes into the file. ``shape`` has the slowest dimension first, as in Hugging Face."""

    name: str
    shape: tuple[int, ...]
    format: str
    data: bytes


def pack_gguf(
    metadata: Mapping[str, Any], tensors: Iterable[RawTensor] = (), *, version: int = 3, alignment: int = 32
) -> bytes:
    """A GGUF file. Metadata values: bool, int (u32, else i32), float (f32), str, bytes, lists of one of these, ``Typed``."""
    tensors = list(tensors)
    if alignment != 32:
        metadata = {**metadata, "general.alignment": alignment}
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    parts += [_string(key) + _value(value) for key, value in metadata.items()]
    data = bytearray()
    for tensor in tensors:
        parts.append(_string(tensor.name) + struct.pack("<I", len(tensor.shape)))
        parts.append(struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape)))
        parts.append(struct.pack("<IQ", TENSOR_TYPES[tensor.format], len(data)))
        data += tensor.data + bytes(-len(tensor.data) % alignment)
    header = b"".join(parts)
    return header + bytes(-len(header) % alignment) + bytes(data)


def _string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "i32" if value < 0 else "u32"
    return "f32"


def _value(value: Any) -> bytes:
    """Type number and value."""
    if isinstance(value, (str, bytes)):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, Typed) and not isinstance(value.value, list):
        return struct.pack("<I" + _STRUCTS[value.kind], VALUE_TYPES[value.kind], value.value)
    if isinstance(value, (list, Typed)):
        return struct.pack("<I", 9) + _items(value)
    return _value(Typed(_kind(value), value))


def _items(value: list[Any] | Typed) -> bytes:
    """Type number of the items, their count, the items."""
    items = value.value if isinstance(value, Typed) else value
    head = struct.pack("<Q", len(items))
    first = items[0] if items else 0
    if isinstance(first, (str, bytes)):
        return struct.pack("<I", 8) + head + b"".join(_string(item) for item in items)
    if isinstance(first, list):
        return struct.pack("<I", 9) + head + b"".join(_items(item) for item in items)
    kind = value.kind if isinstance(value, Typed) else _kind(min(items, default=0))
    return struct.pack("<I", VALUE_TYPES[kind]) + head + struct.pack(f"<{len(items)}{_STRUCTS[kind]}", *items)


# --- a complete tiny model ---

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face weight."""
    stem, _, kind = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_NAMES[part]}.{kind}"


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder q or k rows as the converter does for llama: halves of a head become pairs."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def tiny_metadata(model: TinyModel) -> dict[str, Any]:
    """Metadata of a tiny model: sizes, and a byte-level BPE tokenizer with ChatML."""
    arch = "llama" if model.arch == "mistral" else model.arch
    tokens = vocabulary()
    sizes = {
        "block_count": model.layers,
        "context_length": model.context,
        "embedding_length": model.hidden,
        "feed_forward_length": model.ffn,
        "attention.head_count": model.heads,
        "attention.head_count_kv": model.kv_heads,
        "attention.key_length": model.head_dim,
        "attention.value_length": model.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": model.rope_theta,
        "rope.dimension_count": model.head_dim,
    }
    return {
        "general.architecture": arch,
        "general.name": "tiny",
        **{f"{arch}.{key}": value for key, value in sizes.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Typed("i32", [3 if token in SPECIAL_TOKENS else 1 for token in tokens]),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def tiny_tensors(model: TinyModel, form: str = "f32") -> list[RawTensor]:
    """The weights: matrices in ``form`` (random bits where it has no encoder), vectors in f32."""
    rng = np.random.default_rng(model.seed)
    result = []
    for name, values in model.weights().items():
        heads = {"q_proj": model.heads, "k_proj": model.kv_heads}.get(name.split(".")[-2])
        if heads and model.arch in ("llama", "mistral"):
            values = interleave(values, heads)
        kind = form if values.ndim == 2 else "f32"
        raw = encode(values, kind) if kind in ENCODABLE else random_weights(kind, values.shape, rng)
        result.append(RawTensor(gguf_name(name), values.shape, kind, raw))
    return result


def write_tiny_gguf(path: Path, model: TinyModel | None = None, form: str = "f32", **metadata: Any) -> Path:
    """Write a complete tiny model; ``metadata`` adds or replaces keys (``**{"general.name": "x"}``)."""
    model = model or TinyModel()
    path.write_bytes(pack_gguf({**tiny_metadata(model), **metadata}, tiny_tensors(model, form)))
    return path
