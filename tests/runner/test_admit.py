"""What a runner refuses at its door."""

from __future__ import annotations

import pytest

from forno.errors import ConstraintError, PromptTooLongError, RequestError
from forno.request import Request, SamplingParams
from forno.runner.admit import check_request, constraint_error, seed_of


def request(*prompt: int, **bias: float) -> Request:
    return Request("r", prompt, SamplingParams(logit_bias={int(token[1:]): value for token, value in bias.items()}))


def test_what_fits_passes() -> None:
    check_request(request(0, 9, t0=1.0, t9=-1.0), vocab_size=10, max_model_len=2)


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        (request(3, 10), "prompt", "prompt holds token 10, but the vocabulary ends at 9"),
        (request(-1, 3), "prompt", "prompt holds token -1"),
        (request(1, t10=1.0), "logit_bias", "logit_bias holds token 10"),
    ],
)
def test_tokens_outside_the_vocabulary_are_named(given: Request, param: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        check_request(given, vocab_size=10, max_model_len=8)
    assert refused.value.param == param


def test_a_prompt_too_long_is_told_both_lengths() -> None:
    with pytest.raises(PromptTooLongError, match="3 tokens; at most 2 fit"):
        check_request(request(1, 2, 3), vocab_size=10, max_model_len=2)


def test_seeds_are_kept_or_drawn() -> None:
    assert seed_of(SamplingParams(seed=-7)) == -7
    assert seed_of(SamplingParams()) != seed_of(SamplingParams())


def test_any_failure_of_a_constraint_is_a_constraint_error() -> None:
    mine = ConstraintError("no")
    assert constraint_error(mine) is mine
    assert isinstance(constraint_error(KeyError("state")), ConstraintError)
