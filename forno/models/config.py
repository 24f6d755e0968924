"""``config.json`` to a checked, frozen record. Knows field names and their bounds, not what a model does with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forno.errors import CheckpointError, UnsupportedError
from forno.models.fields import MAX_INTERMEDIATE, MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, MAX_WIDTH, Fields
from forno.models.rope import rope_spec
from forno.program.ops import RopeSpec

_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What the llama family shares: pre-norm blocks of grouped-query attention with rope, and a gated MLP."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeSpec
    dtype: str
    """Key of ``FORMATS`` for matrices whose file precision is not known yet."""
    tie_word_embeddings: bool
    attention_bias: bool
    """On q, k, v and o. Qwen2 has it on q, k and v only."""
    mlp_bias: bool
    windows: tuple[int, ...]
    """Per layer: how many keys back a token sees; 0: all."""

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


def read_decoder(
    config: Mapping[str, Any],
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    max_positions: int,
    windows: tuple[int, ...] = (),
) -> DecoderConfig:
    """Validate a llama-family config. Keyword arguments are what the architecture assumes where the config is silent.

    ``windows`` is per layer, or empty for full attention everywhere.
    """
    fields = Fields(config)
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedError(f"hidden_act {activation!r} is not supported; supported is silu")
    heads = fields.integer("num_attention_heads", MAX_WIDTH)
    silent = kv_heads if "num_key_value_heads" not in config else None  # null means one per query head
    groups = fields.integer("num_key_value_heads", MAX_WIDTH, silent or heads)
    if heads % groups:
        raise CheckpointError(f"num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({groups})")
    hidden = fields.integer("hidden_size", MAX_WIDTH)
    dim = fields.integer("head_dim", MAX_WIDTH, head_dim or max(hidden // heads, 1))
    if config.get("head_dim") is None and head_dim is None and hidden % heads:
        raise CheckpointError(f"hidden_size ({hidden}) must be a multiple of num_attention_heads ({heads}), or head_dim given")
    if dim % 2:
        raise CheckpointError(f"head_dim must be even for rotary embeddings, got {dim}")
    if heads * dim > MAX_WIDTH:
        raise CheckpointError(f"num_attention_heads ({heads}) times head_dim ({dim}) must be at most {MAX_WIDTH}")
    layers = fields.integer("num_hidden_layers", MAX_LAYERS)
    positions = fields.integer("max_position_embeddings", MAX_POSITIONS, max_positions)
    return DecoderConfig(
        vocab_size=fields.integer("vocab_size", MAX_VOCAB),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", MAX_INTERMEDIATE),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=dim,
        max_position_embeddings=positions,
        rms_norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        rope=rope_spec(config, dim),
        dtype=_DTYPES.get(str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch."), "bf16"),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        windows=tuple(0 if w >= positions else w for w in windows) or (0,) * layers,
    )
