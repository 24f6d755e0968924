"""The offline loop on a fake runner and a byte tokenizer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from forno.config import EngineConfig
from forno.errors import ConfigError, NumericsError, PromptTooLongError, RequestError
from forno.llm import LLM
from forno.request import FinishReason, SamplingParams
from tests.engine.conftest import make_engine
from tests.helpers.fake_runner import FakeRunner, unbatched
from tests.helpers.fake_text import ByteTokenizer


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> LLM:
    def build(config: EngineConfig) -> SimpleNamespace:
        engine = make_engine(FakeRunner(), max_num_queued_reqs=config.scheduler.max_num_queued_reqs, max_num_seqs=2)
        checkpoint = SimpleNamespace(chat_template="{% for m in messages %}{{ m.content }}|{% endfor %}")
        tokenizer = ByteTokenizer()
        return SimpleNamespace(engine=engine, tokenizer=tokenizer, checkpoint=checkpoint)

    monkeypatch.setattr("forno.llm.build_engine", build)
    return LLM("some-model", max_num_queued_reqs=3)


def expected(llm: LLM, prompt: str | list[int], sampling: SamplingParams) -> list[int]:
    return list(unbatched(llm._request(prompt, sampling))[0])


def test_prompts_come_back_in_order(llm: LLM) -> None:
    """More prompts than the queue holds, so that the loop has to feed them in."""
    sampling = SamplingParams(max_tokens=5)
    prompts = ["a" * i for i in range(20)]
    completions = llm.generate(prompts, sampling)
    assert [c.prompt for c in completions] == prompts
    assert [c.token_ids for c in completions] == [expected(llm, p, sampling) for p in prompts]
    assert all(c.text == llm.tokenizer.decode(c.token_ids) for c in completions)
    assert {c.finish_reason for c in completions} <= {FinishReason.LENGTH, FinishReason.STOP}
    assert {c.num_prompt_tokens for c in completions} == set(range(1, 21))


@pytest.mark.parametrize("prompts", ["one", [3, 4, 5], ["one"], [[3, 4, 5]]])
def test_one_prompt_in_each_form(llm: LLM, prompts) -> None:
    [completion] = llm.generate(prompts, SamplingParams(max_tokens=2))
    assert completion.token_ids == expected(llm, completion.prompt, SamplingParams(max_tokens=2))
    assert llm.generate([]) == []


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    lengths = [len(c.token_ids) for c in llm.generate(["a", "b"], [SamplingParams(max_tokens=n) for n in (1, 3)])]
    assert lengths == [1, 3]
    with pytest.raises(RequestError, match="2 prompts but 1"):
        llm.generate(["a", "b"], [SamplingParams()])


def test_chat_renders_the_template(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=3)
    message = {"role": "user", "content": "hi"}
    ids = llm.tokenizer.encode("hi|", add_special_tokens=False)
    assert [c.token_ids for c in llm.chat([message], sampling)] == [expected(llm, ids, sampling)]
    assert len(llm.chat([[message], [message, message]], sampling)) == 2


def test_a_prompt_that_never_fits_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(PromptTooLongError):
        llm.generate(["fine", "x" * 1000])
    assert not llm.engine.has_work
    assert llm.engine.stats().steps == 0


def test_a_failed_request_raises_and_leaves_the_engine_clean(llm: LLM) -> None:
    llm.engine.runner.fail[("offline-1", 1)] = NumericsError("NaN")
    with pytest.raises(NumericsError):
        llm.generate(["a", "b", "c"])
    assert not llm.engine.has_work
    llm.engine.check_integrity()
    assert len(llm.generate("again")) == 1


def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'max_num_seq'.*max_num_seqs"):
        LLM("some-model", max_num_seq=4)
