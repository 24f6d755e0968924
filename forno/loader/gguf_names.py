"""Translates a GGUF file into a ``Checkpoint``: metadata to a Hugging Face config, tensor names and row orders to its own.

It knows the conventions of the converter that writes these files (llama.cpp, convert_hf_to_gguf.py), not what a model
computes: ``models`` reads the config as if Hugging Face had written it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from forno.errors import CheckpointError, UnsupportedError
from forno.loader.checkpoint import Checkpoint, Tensor, TokenizerSource
from forno.loader.dequant import dequantize
from forno.loader.files import source_file
from forno.loader.gguf import GgufFile, read_gguf

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""``general.architecture`` (also the ``model_type``) to the class name. Mistral files say llama: same program."""

_INTERLEAVED = ("llama",)
"""Architectures whose q and k rows are stored in pairs for interleaved rope."""

ROPE_FACTORS = "rope_freqs.weight"

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d{1,9})\.(\w+)\.(weight|bias)", re.ASCII)

# Believable at most. What a model accepts is up to ``models``; these keep nonsense out of the arithmetic here.
_MAX_WIDTH = 1 << 22
_MAX_HEAD_DIM = 1 << 14
_MAX_POSITIONS = 1 << 31


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file as a checkpoint.

    Raises ``CheckpointError`` for malformed files, ``UnsupportedError`` for architectures and features forno lacks.
    """
    state = source_file(path)
    file = read_gguf(path)
    config = gguf_config(file)
    tokens = file.metadata.under("tokenizer.")
    template = tokens.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"{path}: tokenizer.chat_template is not valid UTF-8 text")
    return Checkpoint(
        name=path.stem,
        config=config,
        tensors=_hf_tensors(file, config),
        tokenizer=TokenizerSource(gguf=tokens),
        chat_template=template,
        generation_config=_generation_config(file, config),
        files=(state,),
    )


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; unknown names stay as they are, and are reported as extra tensors."""
    match = _LAYER_NAME.fullmatch(name)
    if match:
        layer, part, kind = match.groups()
        return f"model.layers.{int(layer)}.{_LAYER[part]}.{kind}" if part in _LAYER else name
    part, _, kind = name.rpartition(".")
    return f"{_TOP[part]}.{kind}" if part in _TOP and kind in ("weight", "bias") else name


def half_split_order(heads: int, head_dim: int) -> np.ndarray:
    """int32 ``[heads * head_dim]``: where each Hugging Face row of q or k lies in a file with interleaved rope pairs.

    Hugging Face rotates element ``i`` with ``i + head_dim / 2``; the file puts the two side by side, at ``2 i`` and
    ``2 i + 1``.
    """
    rows = np.arange(heads * head_dim, dtype=np.int32).reshape(heads, head_dim // 2, 2)
    return np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(-1)


def gguf_config(file: GgufFile) -> dict[str, Any]:
    """``config.json`` as Hugging Face would write it for this file."""
    keys = _Keys(file, _architecture(file))
    if keys.integer("expert_count", 0, low=0):
        raise UnsupportedError(f"{file.path} is a mixture of experts; forno supports dense {_supported()}")
    # Every layer holds tensors, so their number bounds the layers.
    layers = keys.integer("block_count", high=max(len(file.tensors), 1))
    hidden = keys.integer("embedding_length")
    heads = keys.integer("attention.head_count", high=hidden)
    head_dim = _head_dim(keys, hidden, heads)
    vocab = file.tensors.get("token_embd.weight")
    if vocab is None:
        raise CheckpointError(f"{file.path} has no token_embd.weight; it holds no complete model")
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[keys.arch]],
        "model_type": keys.arch,
        "vocab_size": vocab.shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads, high=heads),
        "head_dim": head_dim,
        "intermediate_size": keys.integer("feed_forward_length"),
        "hidden_act": "silu",
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon", low=0.0, high=1.0),
        "rope_theta": keys.number("rope.freq_base", 10000.0, low=1.0, high=1e12),
        "rope_scaling": _rope_scaling(keys, head_dim),
        "max_position_embeddings": keys.integer("context_length", high=_MAX_POSITIONS),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    if keys.arch == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    _add_window(config, keys)
    for name, key in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
        config[name] = _token_id(file, f"tokenizer.ggml.{key}_token_id", vocab.shape[0])
    return config


def _architecture(file: GgufFile) -> str:
    arch = file.metadata.get("general.architecture")
    if isinstance(arch, str) and arch in ARCHITECTURES:
        if file.metadata.get("split.count", 1) not in (0, 1):
            raise UnsupportedError(f"{file.path} is one part of a split model; join it first: llama-gguf-split --merge")
        return arch
    if not isinstance(arch, str):
        raise CheckpointError(f"{file.path} names no architecture (general.architecture is {arch!r:.80})")
    raise UnsupportedError(f"{file.path} has the architecture {arch!r:.80}; forno supports {_supported()}")


def _supported() -> str:
    return ", ".join(ARCHITECTURES) + " (mistral models are stored as llama)"


@dataclass(frozen=True, slots=True)
class _Keys:
    """Typed, bounded access to the metadata under ``{arch}.``."""

    file: GgufFile
    arch: str

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = _MAX_WIDTH) -> int:
        value = self.file.metadata.get(f"{self.arch}.{key}", default)
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]  # one number per layer
        elif isinstance(value, list):
            raise UnsupportedError(f"{self.file.path}: {self.arch}.{key} differs between layers, which forno does not support")
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.bad(key, value, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None, *, low: float, high: float) -> float:
        value = self.file.metadata.get(f"{self.arch}.{key}", default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
            raise self.bad(key, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def string(self, key: str, default: str) -> str:
        value = self.file.metadata.get(f"{self.arch}.{key}", default)
        if not isinstance(value, str):
            raise self.bad(key, value, "a string")
        return value

    def bad(self, key: str, value: Any, wanted: str) -> CheckpointError:
        found = "missing" if value is None else repr(value)[:80]
        return CheckpointError(f"{self.file.path}: {self.arch}.{key} is {found}, but has to be {wanted}")


def _add_window(config: dict[str, Any], keys: _Keys) -> None:
    """A window on every layer is what Hugging Face calls mistral; of the others the file does not say which layers have it."""
    window = keys.integer("attention.sliding_window", 0, low=0, high=_MAX_POSITIONS)
    if not 0 < window < config["max_position_embeddings"]:
        return
    if keys.arch != "llama" or config["attention_bias"] or config["mlp_bias"]:
        raise UnsupportedError(f"{keys.file.path}: {keys.arch}.attention.sliding_window is supported for mistral models only")
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window}


def _head_dim(keys: _Keys, hidden: int, heads: int) -> int:
    head_dim = keys.integer("attention.key_length", max(hidden // heads, 1), high=_MAX_HEAD_DIM)
    if head_dim % 2:
        raise CheckpointError(f"{keys.file.path}: heads of {head_dim} elements cannot be rotated in pairs")
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.integer(key, head_dim, high=_MAX_HEAD_DIM) != head_dim:
            raise UnsupportedError(
                f"{keys.file.path}: {keys.arch}.{key} is not the head size {head_dim}; forno needs them equal"
            )
    return head_dim


def _rope_scaling(keys: _Keys, head_dim: int) -> dict[str, Any] | None:
    """Hugging Face's ``rope_scaling``, plus one kind of our own: ``{"rope_type": "factors", "factors": [...]}``.

    ``factors`` are ``head_dim / 2`` divisors of the unscaled frequencies: the converter evaluates Llama 3's rule
    and stores the result, not the rule.
    """
    tensor = keys.file.tensors.get(ROPE_FACTORS)
    if tensor is not None:
        if tensor.shape != (head_dim // 2,):
            raise CheckpointError(f"{keys.file.path}: {ROPE_FACTORS} has the shape {tensor.shape}, expected {(head_dim // 2,)}")
        factors = dequantize(tensor)
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise CheckpointError(f"{keys.file.path}: {ROPE_FACTORS} holds values that are not positive numbers")
        return {"rope_type": "factors", "factors": factors.tolist()}
    kind = keys.string("rope.scaling.type", "none")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0, low=0.0, high=1e6), low=0.0, high=1e6)
    if factor in (0.0, 1.0) and kind in ("none", "linear"):
        return None
    if kind == "none":
        kind = "linear"  # older files give the factor alone
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    if original := keys.integer("rope.scaling.original_context_length", 0, low=0, high=_MAX_POSITIONS):
        scaling["original_max_position_embeddings"] = original
    if attention := keys.number("rope.scaling.attn_factor", 0.0, low=0.0, high=1e6):
        scaling["attention_factor"] = attention
    return scaling


def _token_id(file: GgufFile, key: str, vocab_size: int) -> int | None:
    """A token id, or None where there is none; some writers say -1 or 2**32 - 1 for that."""
    value = file.metadata.get(key)
    return value if type(value) is int and 0 <= value < vocab_size else None


def _generation_config(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """Every token that ends a generation: end of sequence, of turn, of message."""
    keys = [f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom")]
    ids = [_token_id(file, key, config["vocab_size"]) for key in keys]
    return {"bos_token_id": config["bos_token_id"], "eos_token_id": list(dict.fromkeys(i for i in ids if i is not None))}


def _hf_tensors(file: GgufFile, config: dict[str, Any]) -> dict[str, Tensor]:
    heads: dict[str, int] = {}
    if file.metadata["general.architecture"] in _INTERLEAVED:
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    orders: dict[str, np.ndarray] = {}
    tensors: dict[str, Tensor] = {}
    for tensor in file.tensors.values():
        if tensor.name == ROPE_FACTORS:
            continue  # part of the config
        name = hf_name(tensor.name)
        if name in tensors:
            raise CheckpointError(f"{file.path}: two tensors are named {name}")
        part = name.split(".")[-2] if name.startswith("model.layers.") else ""
        if part in heads:
            rows = heads[part] * config["head_dim"]
            if tensor.shape[0] != rows:  # before anything of this size is made
                raise CheckpointError(f"{file.path}: {tensor.name} has {tensor.shape[0]} rows, expected {rows}")
            if part not in orders:
                orders[part] = half_split_order(heads[part], config["head_dim"])
        tensors[name] = replace(tensor, name=name, row_order=orders.get(part))
    return tensors
