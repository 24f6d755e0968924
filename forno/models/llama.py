"""Llama 1 to 3, and everything published in its shape (SmolLM2, TinyLlama, Yi, ...): the whole architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forno.models.config import DecoderConfig, read_decoder
from forno.program.builder import ProgramBuilder
from forno.program.program import Program


def program(config: Mapping[str, Any]) -> Program:
    return build("llama", read_decoder(config, max_positions=2048))


def build(name: str, cfg: DecoderConfig, *, q_k_norm: bool = False, o_bias: bool | None = None) -> Program:
    """The llama block. ``q_k_norm`` (Qwen3) norms each head of q and k; ``o_bias`` defaults to the config's."""
    p = ProgramBuilder(name, cfg.vocab_size, cfg.max_position_embeddings, cfg.dtype)
    heads, kv_heads, dim, eps = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim, cfg.rms_norm_eps
    bias, mlp_bias = cfg.attention_bias, cfg.mlp_bias
    x = p.embed("embed_tokens", cfg.hidden_size)  # [rows, hidden]
    for i in p.layers(cfg.num_hidden_layers):
        h = p.rms_norm(x, "input_layernorm", eps)
        q = p.linear(h, "self_attn.q_proj", heads * dim, bias=bias)
        k = p.linear(h, "self_attn.k_proj", kv_heads * dim, bias=bias)
        v = p.linear(h, "self_attn.v_proj", kv_heads * dim, bias=bias)
        if q_k_norm:
            q = p.rms_norm(q, "self_attn.q_norm", eps, group=dim)
            k = p.rms_norm(k, "self_attn.k_norm", eps, group=dim)
        q, k = p.rope(q, heads, dim, cfg.rope), p.rope(k, kv_heads, dim, cfg.rope)
        cache = p.paged_kv(kv_heads, dim)
        a = p.attention(q, k, v, cache=cache, heads=heads, scale=cfg.scale, window=cfg.windows[i])
        x = p.add(x, p.linear(a, "self_attn.o_proj", cfg.hidden_size, bias=bias if o_bias is None else o_bias))
        h = p.rms_norm(x, "post_attention_layernorm", eps)
        gate = p.linear(h, "mlp.gate_proj", cfg.intermediate_size, bias=mlp_bias)
        up = p.linear(h, "mlp.up_proj", cfg.intermediate_size, bias=mlp_bias)
        x = p.add(x, p.linear(p.silu_mul(gate, up), "mlp.down_proj", cfg.hidden_size, bias=mlp_bias))
    h = p.rms_norm(p.last_rows(x), "norm", eps)  # [outputs, hidden]: logits only where a token is needed
    head = "model.embed_tokens" if cfg.tie_word_embeddings else "lm_head"
    return p.finish(p.linear(h, head, cfg.vocab_size, absolute=True, out="logits"))
