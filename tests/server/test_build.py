"""From settings and a model's files to what the server says and does by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from forno.engine import build as engine_build
from forno.errors import ConfigError
from forno.server.build import read_template, sampling_defaults


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"temperature": -1, "top_p": 0, "top_k": 2.5, "min_p": "x", "repetition_penalty": None}, {}),
        ({"temperature": True, "top_p": float("nan")}, {}),
        ({"max_new_tokens": 5, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ],
)
def test_the_model_s_own_sampling_where_it_makes_sense(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sampling_defaults(given) == expected


def test_a_template_that_is_not_there() -> None:
    assert read_template("") is None
    with pytest.raises(ConfigError, match="--chat-template"):
        read_template("/no/such/file")


@dataclass
class Named:
    name: str = "Its own name"


@pytest.mark.parametrize(
    ("model", "served", "expected"),
    [
        ("smollm2-135m", "", "smollm2-135m"),
        (" SmolLM2-135M ", "", "smollm2-135m"),
        ("/a/file.gguf", "", "Its own name"),
        ("smollm2-135m", "mine", "mine"),
    ],
)
def test_the_served_name(model: str, served: str, expected: str) -> None:
    from forno.config import ModelConfig

    assert engine_build.served_name(ModelConfig(model=model, served_model_name=served), Named()) == expected  # type: ignore[arg-type]
