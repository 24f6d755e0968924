"""A model's own sampling, where it makes sense."""

from __future__ import annotations

from typing import Any

import pytest

from forno.engine.defaults import sampling_defaults


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
