"""``forno.request.Runner`` as both real runners honour it, alone and under the engine."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from forno.config import EngineConfig, SchedulerConfig
from forno.engine.build import assemble
from forno.errors import ConstraintError, PromptTooLongError, RequestError
from forno.request import Request, Row, Runner, SamplingParams, StepPlan
from tests.helpers.models import tokens_for
from tests.helpers.runners import BLOCK, NUM_BLOCKS, Model, request

MAKERS: dict[str, Callable[[Model], Runner]] = {"cpu": Model.runner, "reference": Model.reference}


@pytest.fixture(params=MAKERS)
def runner(request: pytest.FixtureRequest) -> Runner:
    return MAKERS[request.param](Model.tiny())


class Breaks:
    """A constraint that fails in a way nobody foresaw, when it is asked or when it is told."""

    def __init__(self, method: str) -> None:
        self.method = method

    def fill_mask(self, mask: Any) -> None:
        mask[:] = 0xFFFFFFFF
        self._break("fill_mask")

    def accept(self, token: int) -> None:
        self._break("accept")

    def is_done(self) -> bool:
        return False

    def _break(self, here: str) -> None:
        if here == self.method:
            raise KeyError(here)


def test_sizes(runner: Runner) -> None:
    assert (runner.num_blocks, runner.block_size, runner.max_model_len) == (NUM_BLOCKS, BLOCK, 256)


def test_refusals_change_nothing(runner: Runner) -> None:
    for bad in (request([96]), request([-1]), request([1], logit_bias={96: 1.0})):
        with pytest.raises(RequestError, match="vocabulary"):
            runner.admit(bad)
    with pytest.raises(PromptTooLongError):
        runner.admit(request([1] * 257))
    first = runner.admit(request([1]))
    runner.release(first)
    assert runner.admit(request([2])) == first


@pytest.mark.parametrize("method", ["fill_mask", "accept"])
def test_a_constraint_that_breaks_fails_its_own_row(runner: Runner, method: str) -> None:
    bad, good = runner.admit(request([1, 2], constraint=Breaks(method))), runner.admit(request([3, 4]))
    result = runner.run(StepPlan((Row(bad, 0, 2, (0,), True), Row(good, 0, 2, (1,), True))))
    assert isinstance(result.errors[0], ConstraintError)
    assert [len(tokens) for tokens in result.tokens] == [0, 1]


def test_an_engine_on_either_runner_says_the_same() -> None:
    requests = [Request(str(i), tuple(tokens_for(i, 40 + i)), SamplingParams(6, temperature=0.0)) for i in range(3)]
    pieces = [bytes([i]) for i in range(96)]
    tokenizer = SimpleNamespace(pieces=SimpleNamespace(visible=pieces, raw=pieces, strips_leading_space=False))
    config = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64))  # prompts come in chunks
    said = []
    for make in MAKERS.values():
        engine = assemble(make(Model.tiny()), tokenizer, config)
        for one in requests:
            engine.add_request(one)
        texts = dict.fromkeys("012", "")
        while engine.has_work:
            for output in engine.step():
                assert output.error is None
                texts[output.id] += output.text
        said.append(texts)
    assert said[0] == said[1]
    assert {len(text) for text in said[0].values()} == {6}
