"""Configs as published build; configs that are damaged or ask for more are refused by the field's name."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.errors import CheckpointError, ModelError, UnsupportedError
from forno.models import MODELS, build_program
from forno.program import ops
from tests.helpers.models import CONFIGS

LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def shape(model_type: str, hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, vocab: int, **more: Any) -> dict:
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "torch_dtype": "bfloat16",
        **more,
    }


PUBLISHED = {
    "SmolLM2-135M": (shape("llama", 576, 1536, 30, 9, 3, 49152, tie_word_embeddings=True), 134_515_008, 23_040),
    "TinyLlama-1.1B": (shape("llama", 2048, 5632, 22, 32, 4, 32000), 1_100_048_384, 22_528),
    "Llama-3.1-8B": (shape("llama", 4096, 14336, 32, 32, 8, 128256, rope_scaling=LLAMA3_ROPE), 8_030_261_248, 131_072),
    "Llama-3.1-405B": (shape("llama", 16384, 53248, 126, 128, 8, 128256), 405_853_388_800, 516_096),
    "Mistral-7B-v0.1": (shape("mistral", 4096, 14336, 32, 32, 8, 32000, sliding_window=4096), 7_241_732_096, 131_072),
    "Mistral-Nemo": (shape("mistral", 5120, 14336, 40, 32, 8, 131072, head_dim=128), 12_247_782_400, 163_840),
    "Qwen2.5-0.5B": (shape("qwen2", 896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True), 494_032_768, 12_288),
    "Qwen3-0.6B": (shape("qwen3", 1024, 3072, 28, 16, 8, 151936, tie_word_embeddings=True), 596_049_920, 114_688),
    "Qwen3-32B": (shape("qwen3", 5120, 25600, 64, 64, 8, 151936), 32_762_123_264, 262_144),
}
"""Dimensions, parameters and bf16 KV bytes per token, as the makers publish them."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_published_size(name: str) -> None:
    config, parameters, kv_bytes = PUBLISHED[name]
    program = build_program(config)
    assert sum(w.elements for w in program.weights.values()) == parameters
    assert program.kv_bytes_per_token == kv_bytes


def test_unknown_architectures_list_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"'mamba2' is not supported; supported are llama, mistral, qwen2, qwen3"):
        build_program({"model_type": "mamba2"})
    with pytest.raises(CheckpointError, match="no model_type"):
        build_program({})


LLAMA = CONFIGS["llama"]


@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        ({"hidden_size": None}, CheckpointError, "no hidden_size"),
        ({"hidden_size": -4}, CheckpointError, "hidden_size must be a whole number from 1"),
        ({"hidden_size": 96.0}, CheckpointError, "hidden_size"),
        ({"hidden_size": True}, CheckpointError, "hidden_size"),
        ({"hidden_size": 97}, CheckpointError, r"hidden_size \(97\) must be a multiple of num_attention_heads \(6\)"),
        ({"hidden_size": 10**12}, CheckpointError, "hidden_size"),
        ({"vocab_size": 2**31}, CheckpointError, "vocab_size"),
        ({"num_hidden_layers": 10**6}, CheckpointError, "num_hidden_layers"),
        ({"num_key_value_heads": 4}, CheckpointError, r"num_key_value_heads \(4\)"),
        ({"head_dim": 15}, CheckpointError, "head_dim must be even"),
        ({"head_dim": 100_000}, CheckpointError, "times head_dim"),
        ({"rms_norm_eps": float("nan")}, CheckpointError, "rms_norm_eps"),
        ({"rope_theta": 0}, CheckpointError, "rope_theta"),
        ({"rope_theta": 10**400}, CheckpointError, "rope_theta"),
        ({"tie_word_embeddings": "yes"}, CheckpointError, "tie_word_embeddings"),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act 'gelu'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, UnsupportedError, "rope_type 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}}, UnsupportedError, "longrope"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, UnsupportedError, "dynamic"),
        ({"rope_scaling": {"rope_type": ["llama3"]}}, UnsupportedError, "llama3"),
        ({"rope_scaling": {"rope_type": "linear"}}, CheckpointError, "rope factor"),
        ({"rope_scaling": {**LLAMA3_ROPE, "high_freq_factor": 1.0}}, CheckpointError, "high_freq_factor"),
        ({"rope_scaling": "llama3"}, CheckpointError, "rope_scaling must be an object"),
        ({"rope_scaling": {"rope_type": "factors", "factors": [1.0]}}, CheckpointError, "list of 8 numbers"),
        ({"partial_rotary_factor": 0.5}, UnsupportedError, "partial_rotary_factor"),
    ],
)
def test_bad_fields_are_named(change: dict[str, Any], error: type[Exception], names: str) -> None:
    with pytest.raises(error, match=names):
        build_program({**LLAMA, **change})


FIELDS = sorted({key for config in CONFIGS.values() for key in config} | {"rope_parameters", "layer_types", "head_dim"})
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(
        st.sampled_from(["rope_type", "type", "factor", "rope_theta", "factors"]), st.integers() | st.text(max_size=8)
    ),
)


@settings(max_examples=150)
@given(st.sampled_from(sorted(CONFIGS)), st.dictionaries(st.sampled_from(FIELDS), JUNK, min_size=1, max_size=3))
def test_junk_in_any_field_is_a_named_error_or_a_sound_program(name: str, junk: dict[str, Any]) -> None:
    small = {k: v for k, v in junk.items() if k != "num_hidden_layers" or not isinstance(v, int) or v not in range(5, 1025)}
    with suppress(ModelError):
        build_program({**CONFIGS[name], **small})  # anything but a ModelError fails the test


def windows(config: dict[str, Any]) -> list[int]:
    return [op.window for op in build_program(config).ops if isinstance(op, ops.Attention)]


def test_windows_by_layer() -> None:
    mistral, qwen = CONFIGS["mistral"], CONFIGS["qwen2-window"]
    assert windows({**mistral, "sliding_window": 40}) == [40, 40]
    assert windows({**mistral, "sliding_window": None}) == [0, 0]
    assert windows({**mistral, "sliding_window": 256}) == [0, 0]  # as long as the context: no limit
    assert windows({k: v for k, v in mistral.items() if k != "sliding_window"} | {"max_position_embeddings": 8192}) == [
        4096,
        4096,
    ]
    assert windows(qwen) == [0, 5]
    assert windows({**qwen, "use_sliding_window": False}) == [0, 0]
    assert windows({**qwen, "layer_types": ["sliding_attention", "full_attention"]}) == [5, 0]
    with pytest.raises(CheckpointError, match="layer_types must list 2"):
        build_program({**qwen, "layer_types": ["sliding_attention"]})


def test_formats_default_to_the_config_dtype() -> None:
    for key, value, form in (("torch_dtype", "float16", "f16"), ("dtype", "bfloat16", "bf16"), ("dtype", "float32", "f32")):
        config = {k: v for k, v in LLAMA.items() if k != "torch_dtype"} | {key: value}
        assert build_program(config).weights["lm_head.weight"].format == form


def test_every_registered_model_type_builds_and_names_itself() -> None:
    for model_type in MODELS:
        config = next(c for c in CONFIGS.values() if c["model_type"] == model_type)
        assert build_program(json.loads(json.dumps(config))).name == model_type
