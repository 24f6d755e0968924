"""Settings that cannot be honoured are refused when they are made, whoever makes them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from forno.config import CacheConfig, CpuConfig, ModelConfig, SchedulerConfig, ServerConfig, SpeculativeConfig
from forno.errors import ConfigError
from forno.options import flag

CONFIGS = (ModelConfig, CpuConfig, CacheConfig, SchedulerConfig, SpeculativeConfig, ServerConfig)
CHOSEN = [(config, f.name, f.metadata["choices"]) for config in CONFIGS for f in fields(config) if "choices" in f.metadata]


@pytest.mark.parametrize(("config", "name", "choices"), CHOSEN)
def test_choices_hold_outside_the_command_line_too(config: Any, name: str, choices: tuple[str, ...]) -> None:
    for choice in choices:
        assert getattr(config(**{name: choice}), name) == choice
    with pytest.raises(ConfigError, match=f"{flag(name)} must be one of {choices[0]}, .* got 'other'"):
        config(**{name: "other"})


AMOUNTS = [(config, f.name) for config in CONFIGS for f in fields(config) if isinstance(f.default, float)]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(("config", "name"), AMOUNTS)
def test_amounts_are_finite_and_not_negative(config: Any, name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{flag(name)} must be a finite number, at least 0, got {value}"):
        config(**{name: value})


@pytest.mark.parametrize("config", CONFIGS)
def test_every_field_has_a_default_and_a_help_text(config: Any) -> None:
    config()
    for field in fields(config):
        assert field.metadata["help"].endswith("."), field.name


@pytest.mark.parametrize("value", [0, 31, 33, -32])
def test_blocks_are_whole_pages(value: int) -> None:
    with pytest.raises(ConfigError, match=f"--block-size must be a multiple of 32, got {value}"):
        CacheConfig(block_size=value)


def test_a_step_has_room_for_every_sequence() -> None:
    with pytest.raises(ConfigError, match="--max-num-seqs must be at least 1"):
        SchedulerConfig(max_num_seqs=0)
    with pytest.raises(ConfigError, match=r"--max-num-batched-tokens \(7\) must be at least --max-num-seqs \(8\)"):
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_speculative_tokens": 0}, "--num-speculative-tokens must be at least 1, got 0"),
        ({"prompt_lookup_min": 0}, r"--prompt-lookup-min \(0\) must be between 1 and --prompt-lookup-max \(4\)"),
        ({"prompt_lookup_max": 1}, r"--prompt-lookup-min \(2\) must be between 1 and --prompt-lookup-max \(1\)"),
        ({"speculative_max_rows": 1}, "--speculative-max-rows must be at least 2, for a token and a guess, got 1"),
    ],
)
def test_guesses_have_room(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SpeculativeConfig(speculative="ngram", **options)


def test_a_config_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        CacheConfig().block_size = 64  # type: ignore[misc]
