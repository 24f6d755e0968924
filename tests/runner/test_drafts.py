"""Rows that verify drafts, as both real runners compute them: what is right counts, what is not leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno import _native
from forno.errors import EngineError, NumericsError
from forno.request import Row, Runner, StepPlan, TokenLogprobs
from forno.runner.cpu import CpuRunner
from tests.helpers.models import tokens_for
from tests.helpers.runners import Model, request

BLOCKS = (7, 2, 4)
PROMPT = tokens_for(1, 45)
COUNT = 24
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 7, "logprobs": 2},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "seed": 8},
    {"temperature": 1.5, "seed": 9, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"repetition_penalty": 1.4, "frequency_penalty": -1.0, "logit_bias": {3: 5.0, 9: -100.0}, "logprobs": 0},
    {"temperature": 2.0, "seed": 10, "min_tokens": 12, "stop_token_ids": tuple(range(0, 96, 2))},
    {"prompt_logprobs": 1, "temperature": 1.0, "seed": 11, "logprobs": 1, "repetition_penalty": 0.7},
]


@cache
def runner(kind: str) -> Runner:
    return Model.tiny().reference() if kind == "reference" else Model.tiny().runner(2, kind)


KINDS = ("reference", *_native.available_isas())


@cache
def expected(kind: str, sampling: int) -> tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]:
    """Tokens and their scores, one per step."""
    return verified(kind, sampling, lambda known: ())


def verified(
    kind: str, sampling: int, guess: Callable[[int], tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]:
    """The same with drafts: ``guess`` is asked with the number of tokens generated so far."""
    one = runner(kind)
    slot = one.admit(request(PROMPT, **SAMPLINGS[sampling]))
    tokens: tuple[int, ...] = ()
    scores: tuple[TokenLogprobs, ...] = ()
    while len(tokens) < COUNT:
        start = len(PROMPT) + len(tokens) - 1 if tokens else 0
        drafts = guess(len(tokens))[: COUNT - len(tokens) - 1]
        count = len(PROMPT) + len(tokens) - start + len(drafts)
        result = one.run(StepPlan((Row(slot, start, count, BLOCKS, True, drafts),)))
        assert not result.errors
        right = [*result.tokens[0]][: len(drafts)] == [*drafts][: len(result.tokens[0])]
        assert len(result.tokens[0]) == len(drafts) + 1 if right else len(result.tokens[0]) <= len(drafts)
        tokens += result.tokens[0]
        scores += result.logprobs[0] if result.logprobs else ()
    one.release(slot)
    return tokens, scores


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", range(len(SAMPLINGS)))
@given(st.data())
@settings(max_examples=6, derandomize=True, deadline=None)
def test_drafts_change_nothing(kind: str, sampling: int, data: st.DataObject) -> None:
    tokens, scores = expected(kind, sampling)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rate = data.draw(st.sampled_from([0.0, 0.2, 1.0]))

    def guess(known: int) -> tuple[int, ...]:
        return tuple(int(rng.integers(96)) if rng.random() < rate else t for t in tokens[known : known + rng.integers(0, 7)])

    assert verified(kind, sampling, guess) == (tokens, scores)
    if SAMPLINGS[sampling].get("logprobs") is not None:
        assert [score.token for score in scores] == list(tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_and_its_drafts_are_one_row(kind: str) -> None:
    tokens, _ = expected(kind, 0)
    slot = runner(kind).admit(request(PROMPT))
    result = runner(kind).run(StepPlan((Row(slot, 0, len(PROMPT) + 3, BLOCKS, True, tokens[:3]),)))
    runner(kind).release(slot)
    assert result.tokens == (tokens[:4],)


@pytest.mark.parametrize("make", [Model.reference, Model.runner], ids=["reference", "cpu"])
def test_a_failure_after_a_draft_waits_until_it_is_come_to(make: Callable[[Model], Runner]) -> None:
    """Reading one damaged token fails: not where it is a wrong guess, and where it is a right one only in the next step."""
    model, name, bad = Model.tiny(), "model.embed_tokens.weight", 5
    tensor = model.tensors[name]
    table = tensor.data.copy().reshape(tensor.shape[0], -1)
    table[bad] = 0xFF  # NaN
    broken = make(Model(model.program, {**model.tensors, name: replace(tensor, data=table.reshape(-1))}))
    never, always = (broken.admit(request([1, 2], logit_bias={bad: bias})) for bias in (-100.0, 100.0))
    rows = (Row(never, 0, 4, (0,), True, (bad, bad)), Row(always, 0, 4, (1,), True, (bad, bad)))
    result = broken.run(StepPlan(rows))
    assert not result.errors
    assert [len(tokens) for tokens in result.tokens] == [1, 1]
    assert result.tokens[1] == (bad,)
    result = broken.run(StepPlan((Row(never, 2, 1, (0,), True), Row(always, 2, 2, (1,), True, (bad,)))))
    assert isinstance(result.errors[1], NumericsError)
    assert [len(tokens) for tokens in result.tokens] == [1, 0]


@pytest.fixture
def native() -> CpuRunner:
    return Model.tiny().runner()


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (Row(0, 0, 4, (0,), True, (96,)), "outside the vocabulary"),
        (Row(0, 0, 4, (0,), True, (-1,)), "outside the vocabulary"),
        (Row(0, 0, 3, (0,), True, (1,)), "only the last"),
        (Row(0, 0, 5, (0,), True, (1,)), "only 4 tokens resident"),
        (Row(0, 0, 4, (0,), False, (1,)), "follow a position that is sampled"),
        (Row(0, 3, 1, (0,), True, (1,)), "follow a position that is sampled"),
        (Row(0, 0, 9, (0,), True, (1,) * 6), "more than the request may hold"),
    ],
)
def test_drafts_that_do_not_fit_are_refused_and_change_nothing(native: CpuRunner, row: Row, complaint: str) -> None:
    slot = native.admit(request([1, 2, 3], max_tokens=4))
    with pytest.raises(EngineError, match=complaint):
        native.run(StepPlan((row,)))
    plain = native.run(StepPlan((Row(slot, 0, 3, (0,), True),)))
    again = native.admit(request([1, 2, 3], max_tokens=4))
    assert native.run(StepPlan((Row(again, 0, 3, (1,), True),))).tokens == plain.tokens
