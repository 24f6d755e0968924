"""Sampling parameters are valid by construction, and a plan counts its tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forno.errors import RequestError
from forno.request import MAX_LOGPROBS, Row, SamplingParams, StepPlan

LIMITS: dict[str, tuple[float, float]] = {
    "max_tokens": (0, 1 << 40),
    "temperature": (0.0, 100.0),
    "top_k": (-1, 1 << 40),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}


@pytest.mark.parametrize(("name", "limits"), LIMITS.items())
def test_values_up_to_the_limits_are_taken_and_no_others(name: str, limits: tuple[float, float]) -> None:
    low, high = limits
    for value in limits:
        assert getattr(SamplingParams(**{name: value}), name) == value
    outside: list[Any] = [low - 1, math.nan, -math.inf, True]
    for value in outside if high > 1 << 30 else [*outside, high + 1]:
        with pytest.raises(RequestError, match=f"{name} must be") as refused:
            SamplingParams(**{name: value})
        assert refused.value.param == name


@pytest.mark.parametrize("value", [0.0, -0.1, 1.1, math.nan])
def test_top_p_keeps_something(value: float) -> None:
    with pytest.raises(RequestError, match="top_p must be"):
        SamplingParams(top_p=value)


def test_min_tokens_cannot_exceed_max_tokens() -> None:
    assert SamplingParams(max_tokens=3, min_tokens=3).min_tokens == 3
    with pytest.raises(RequestError, match="min_tokens must be between 0 and 3, got 4"):
        SamplingParams(max_tokens=3, min_tokens=4)


@pytest.mark.parametrize("bias", [100.5, -101, math.nan])
def test_a_bias_names_its_token(bias: float) -> None:
    with pytest.raises(RequestError, match=r"logit_bias\[7\]") as refused:
        SamplingParams(logit_bias={3: 100.0, 7: bias})
    assert refused.value.param == "logit_bias"


def test_tokens_of_a_plan() -> None:
    assert StepPlan(()).num_tokens == 0
    assert StepPlan((Row(0, 5, 3, (1,), False), Row(1, 0, 1, (2,), True))).num_tokens == 4
