"""Sampling by its definition: every filter on a distribution small enough to check by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forno.errors import ConstraintError, NumericsError
from forno.kernels.reference.sampling import (
    SamplingContext,
    adjust,
    ending_tokens,
    kept_tokens,
    logprobs,
    sample,
    uniform,
)
from forno.request import SamplingParams

PROBABILITIES = np.array([0.1, 0.4, 0.2, 0.2, 0.1])
LOGITS = np.log(PROBABILITIES).astype(np.float32)
NOTHING = SamplingContext(prompt=())


def kept(**sampling: Any) -> list[int]:
    return kept_tokens(LOGITS.astype(np.float64), SamplingParams(**sampling)).tolist()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 2}, [1, 2]),  # 2 and 3 are equal: the lower id wins
        ({"top_k": -1}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.5}, [1, 2]),
        ({"top_p": 0.39}, [1]),
        ({"top_k": 3, "top_p": 0.7}, [1, 2]),  # of the 0.8 that top-k leaves, 0.56 are wanted
        ({"min_p": 0.4}, [1, 2, 3]),
        ({"top_k": 2, "min_p": 0.9}, [1]),
        ({"temperature": 0.1, "top_p": 0.95}, [1]),
    ],
)
def test_filters(sampling: dict[str, Any], expected: list[int]) -> None:
    assert kept(**sampling) == expected


def test_adjustments_come_in_order() -> None:
    sampling = SamplingParams(
        logit_bias={0: 3.0},
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        min_tokens=9,
        stop_token_ids=(4,),
    )
    given = np.array([1.0, -1.0, 6.0, 2.0, 8.0], np.float32)
    context = SamplingContext(prompt=(0, 1), generated=(2, 2), eos_token_ids=(3,))
    # Bias, then the repetition penalty on prompt and output, then presence and frequency on output; ending tokens are masked.
    assert adjust(given, sampling, context).tolist() == [2.0, -2.0, 3.0 - 0.5 - 2 * 0.25, -np.inf, -np.inf]


def test_ending_tokens() -> None:
    assert ending_tokens(SamplingParams(stop_token_ids=(5, 2)), (2, 1)) == [1, 2, 5]
    assert ending_tokens(SamplingParams(stop_token_ids=(5,), ignore_eos=True), (2, 1)) == [5]


def test_greedy_takes_the_best_allowed_token() -> None:
    greedy = SamplingParams(temperature=0.0)
    assert sample(LOGITS, greedy, NOTHING) == 1
    assert sample(LOGITS, greedy, SamplingContext((), mask=np.array([0b11101], np.uint32))) == 2
    with pytest.raises(ConstraintError):
        sample(LOGITS, greedy, SamplingContext((), mask=np.zeros(1, np.uint32)))
    for bad in (np.nan, np.inf):
        with pytest.raises(NumericsError):
            sample(np.array([0.0, bad], np.float32), greedy, NOTHING)


def test_draws_follow_the_distribution_and_nothing_but_seed_and_position() -> None:
    draws = [sample(LOGITS, SamplingParams(), SamplingContext(prompt=(0,) * 7, seed=seed)) for seed in range(4000)]
    shares = np.bincount(draws, minlength=5) / len(draws)
    assert np.abs(shares - PROBABILITIES).max() < 0.04  # five standard errors
    again = SamplingContext(prompt=(0,) * 5, generated=(1, 1), seed=3)
    assert sample(LOGITS, SamplingParams(presence_penalty=0.0), again) == draws[3]


def test_random_numbers_are_those_of_philox() -> None:
    """Random123's known answer for Philox4x32-10 with key and counter 0 begins 6627e8d5 e169c58d."""
    assert uniform(0, 0) == ((0x6627E8D5 >> 5) << 26 | 0xE169C58D >> 6) / 2**53
    numbers = [uniform(seed, position) for seed in (0, 1, -1, 2**63 - 1) for position in range(50)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)
    assert abs(np.mean(numbers) - 0.5) < 0.1


def test_logprobs_rank_and_alternatives() -> None:
    found = logprobs(LOGITS, token=3, count=2)
    assert (found.token, found.rank, [t for t, _ in found.top]) == (3, 3, [1, 2])
    assert found.logprob == pytest.approx(np.log(0.2), abs=1e-6)
    assert logprobs(LOGITS, token=1, count=0).top == ()
