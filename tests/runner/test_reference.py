"""The reference runner: a request's tokens are its own, whatever shares its steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forno.errors import ConstraintError, NumericsError
from forno.models import build_program
from forno.program.passes import apply
from forno.program.program import Program
from forno.request import Request, Row, SamplingParams, StepPlan, StepResult
from forno.runner.reference import ReferenceRunner
from tests.helpers.models import BLOCK_SIZE, CONFIGS, logits_of, tiny_weights, tokens_for


@pytest.fixture(scope="module")
def program() -> Program:
    return apply(build_program(CONFIGS["llama"]))


@pytest.fixture
def runner(program: Program) -> Any:
    return ReferenceRunner(program, tiny_weights(program), 16, BLOCK_SIZE)


def request(prompt: list[int], **sampling: Any) -> Request:
    return Request("r", tuple(prompt), SamplingParams(**{"temperature": 0.0, **sampling}))


def generate(runner: Any, index: int, prompt: int, steps: int, blocks: tuple[int, ...]) -> list[int]:
    """Prefill in one row, then decode."""
    tokens: list[int] = []
    for step in range(steps):
        start, count = (prompt + step - 1, 1) if step else (0, prompt)
        tokens += runner.run(StepPlan((Row(index, start, count, blocks, True),))).tokens[0]
    return tokens


def test_greedy_tokens_are_those_of_recomputing_everything(program: Program, runner: Any) -> None:
    prompt = tokens_for(4, 9)
    got = generate(runner, runner.admit(request(prompt)), 9, 6, (3, 1))
    for token in got:
        assert token == logits_of(program, tiny_weights(program), prompt)[-1].argmax()
        prompt.append(token)


def test_seeded_tokens_do_not_depend_on_company(runner: Any) -> None:
    prompt = tokens_for(4, 9)
    alone = generate(runner, runner.admit(request(prompt, temperature=1.5, seed=5)), 9, 6, (3, 1))
    a = runner.admit(request(prompt, temperature=1.5, seed=5))
    b = runner.admit(request(tokens_for(6, 20), temperature=1.5, seed=6))
    together: list[int] = []
    for step in range(6):
        mine = Row(a, 8 + step, 1, (5, 6), True) if step else Row(a, 0, 9, (5, 6), True)
        other = Row(b, 3 * step, 3, (7, 8, 9), False)
        together += runner.run(StepPlan((other, mine))).tokens[1]
    assert together == alone
    assert len(set(alone)) > 1


def test_unsampled_rows_yield_nothing_and_indices_are_reused(runner: Any) -> None:
    first, second = runner.admit(request([1, 2, 3])), runner.admit(request([4]))
    result = runner.run(StepPlan((Row(first, 0, 2, (0,), False), Row(second, 0, 1, (1,), True))))
    assert [len(t) for t in result.tokens] == [0, 1]
    assert result.logprobs == ()
    runner.release(first)
    assert runner.admit(request([5])) == first


def test_logprobs_of_samples_and_of_the_prompt(program: Program, runner: Any) -> None:
    prompt = tokens_for(8, 5)
    index = runner.admit(request(prompt, logprobs=2, prompt_logprobs=1))
    logits = logits_of(program, tiny_weights(program), prompt).astype(float)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    results: list[StepResult] = [
        runner.run(StepPlan((Row(index, 0, 3, (2,), False),))),
        runner.run(StepPlan((Row(index, 3, 2, (2,), True),))),
    ]
    scored = [s for r in results for s in r.prompt_logprobs[0]]
    assert [s.token for s in scored] == prompt[1:]
    assert [s.logprob for s in scored] == pytest.approx([expected[i, t] for i, t in enumerate(prompt[1:])], abs=1e-6)
    (sampled,) = results[1].logprobs[0]
    assert (sampled.token, sampled.rank) == (results[1].tokens[0][0], 1)
    assert len(sampled.top) == 2


def test_block_copies_come_before_the_step(runner: Any) -> None:
    prompt = tokens_for(9, 6)
    index = runner.admit(request(prompt))
    runner.run(StepPlan((Row(index, 0, 5, (0,), False),)))
    here = runner.run(StepPlan((Row(index, 5, 1, (0,), True),))).tokens
    fork = runner.admit(request(prompt))
    assert runner.run(StepPlan((Row(fork, 5, 1, (4,), True),), copies=((0, 4),))).tokens == here


class Refuses:
    """A constraint that allows no token, or breaks on the one that was drawn."""

    def __init__(self, mask: int) -> None:
        self.mask = mask

    def fill_mask(self, mask: Any) -> None:
        mask[:] = self.mask

    def accept(self, token: int) -> None:
        raise ConstraintError("not this one")

    def is_done(self) -> bool:
        return False


@pytest.mark.parametrize("mask", [0, 0xFFFFFFFF])
def test_a_broken_constraint_fails_its_own_row(runner: Any, mask: int) -> None:
    bad = runner.admit(Request("bad", (1, 2), SamplingParams(temperature=0.0), constraint=Refuses(mask)))
    good = runner.admit(request([3, 4]))
    result = runner.run(StepPlan((Row(bad, 0, 2, (0,), True), Row(good, 0, 2, (1,), True))))
    assert isinstance(result.errors[0], ConstraintError)
    assert [len(t) for t in result.tokens] == [0, 1]


def test_nan_logits_fail_their_own_rows(program: Program) -> None:
    weights = tiny_weights(program)
    weights["model.embed_tokens.weight"][7] = np.nan
    runner = ReferenceRunner(program, weights, 4, BLOCK_SIZE)
    bad, good = runner.admit(request([7])), runner.admit(request([3]))
    result = runner.run(StepPlan((Row(bad, 0, 1, (0,), True), Row(good, 0, 1, (1,), True))))
    assert isinstance(result.errors[0], NumericsError)
    assert [len(t) for t in result.tokens] == [0, 1]
