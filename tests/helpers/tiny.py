"""A tiny random model: its config as Hugging Face would write it, its weights, and a byte-level BPE tokenizer.

Writers (``gguf_writer``, ``safetensors_writer``) put it on disk; the same ``TinyModel`` gives the same weights in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "t he", "i n", "Ġ the", "e r", "o n", "Ġ a", "a n", "Ġ t", "l l", "o r", "in g")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_symbols() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE, by byte (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256))
    return [chr(byte) if byte in printable else chr(256 + next(others)) for byte in range(256)]


def vocabulary() -> list[str]:
    """Special tokens, then bytes, then merges."""
    return [*SPECIAL_TOKENS, *byte_symbols(), *(merge.replace(" ", "") for merge in MERGES)]


@dataclass(frozen=True, slots=True)
class TinyModel:
    """Sizes of a model small enough for a test. K-quants need ``hidden``, ``ffn`` and heads x head_dim divisible by 256."""

    arch: str = "llama"
    """``llama``, ``mistral``, ``qwen2`` or ``qwen3``."""
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 96
    tied: bool = True
    context: int = 512
    rope_theta: float = 10000.0
    seed: int = 0

    @property
    def vocab_size(self) -> int:
        return len(vocabulary())

    def config(self) -> dict[str, Any]:
        """``config.json``."""
        return {
            "architectures": [CLASSES[self.arch]],
            "model_type": self.arch,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.ffn,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": self.tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by Hugging Face name, in a fixed order."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, self.hidden)}
        for i in range(self.layers):
            p = f"model.layers.{i}."
            shapes[p + "input_layernorm.weight"] = shapes[p + "post_attention_layernorm.weight"] = (self.hidden,)
            for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
                shapes[f"{p}self_attn.{name}.weight"] = (rows, self.hidden)
                if self.arch == "qwen2":
                    shapes[f"{p}self_attn.{name}.bias"] = (rows,)
            shapes[p + "self_attn.o_proj.weight"] = (self.hidden, q)
            if self.arch == "qwen3":
                shapes[p + "self_attn.q_norm.weight"] = shapes[p + "self_attn.k_norm.weight"] = (self.head_dim,)
            shapes[p + "mlp.gate_proj.weight"] = shapes[p + "mlp.up_proj.weight"] = (self.ffn, self.hidden)
            shapes[p + "mlp.down_proj.weight"] = (self.hidden, self.ffn)
        shapes["model.norm.weight"] = (self.hidden,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden)
        return shapes

    def weights(self) -> dict[str, np.ndarray]:
        """float32 weights: matrices small and centred, norms near one."""
        rng = np.random.default_rng(self.seed)
        result = {}
        for name, shape in self.shapes().items():
            values = rng.standard_normal(shape, np.float32) * np.float32(0.05)
            result[name] = values + np.float32(1) if "norm" in name else values
        return result
