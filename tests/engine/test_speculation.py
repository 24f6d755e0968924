"""``--speculative`` changes the number of steps and nothing that a client can see, on either real runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.cache import KvCache
from forno.config import SchedulerConfig, SpeculativeConfig
from forno.engine.engine import Engine
from forno.engine.output import OutputProcessor
from forno.request import FinishReason, Request, Runner, SamplingParams, TokenLogprobs
from forno.scheduler import Scheduler
from forno.text import IncrementalDetokenizer, StopStrings
from tests.helpers.models import tokens_for
from tests.helpers.runners import BLOCK, Model
from tests.helpers.steady_runner import SteadyRunner

PIECES = [bytes([32 + i]) for i in range(95)] + ["é".encode()[:1]]
TOKENIZER = SimpleNamespace(pieces=SimpleNamespace(visible=PIECES, raw=PIECES, strips_leading_space=False))


@dataclass
class Answer:
    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    end: tuple[FinishReason | None, int | str | None, int] = field(default=(None, None, 0))


@cache
def runner(kind: str) -> Runner:
    return SteadyRunner(Model.tiny().reference() if kind == "reference" else Model.tiny().runner(2, kind))


def answers(kind: str, requests: list[Request], num_blocks: int, speculative: str) -> tuple[dict[str, Answer], Engine]:
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64)
    scheduler = Scheduler(
        config, KvCache(num_blocks, BLOCK), 256, lambda: 1.0, speculative=SpeculativeConfig(speculative=speculative)
    )
    engine = Engine(
        runner(kind),
        scheduler,
        OutputProcessor(lambda request: IncrementalDetokenizer(TOKENIZER, request.prompt, True), StopStrings),
    )
    found = {request.id: Answer() for request in requests}
    waiting = list(requests)
    while waiting or engine.has_work:
        if waiting:
            engine.add_request(waiting.pop(0))
        for output in engine.step():
            assert output.error is None
            answer = found[output.id]
            answer.text += output.text
            answer.tokens += output.token_ids
            answer.logprobs += output.logprobs
            answer.prompt_logprobs += output.prompt_logprobs
            answer.end = (output.finish_reason, output.stop_reason, output.num_generated_tokens)
            assert output.num_generated_tokens == len(answer.tokens)
        engine.check_integrity()
    assert scheduler.cache.usage == 0.0
    return found, engine


def random_request(id: str, rng: np.random.Generator) -> Request:
    """A prompt that repeats itself, perhaps with the beginning of the others'."""
    phrase = tokens_for(int(rng.integers(3)), int(rng.integers(2, 12)))
    prompt = (tokens_for(9, BLOCK) if rng.random() < 0.5 else []) + phrase * int(rng.integers(1, 6))
    max_tokens = int(rng.integers(1, 40))
    sampling: dict[str, Any] = {
        "temperature": float(rng.choice([0.0, 0.0, 0.3, 1.0])),
        "seed": int(rng.integers(100)),
        "top_p": float(rng.choice([1.0, 0.8])),
        "presence_penalty": float(rng.choice([0.0, 0.0, 0.5])),
        "frequency_penalty": float(rng.choice([0.0, 0.0, -0.5])),
        "repetition_penalty": float(rng.choice([1.0, 1.0, 0.9])),
        "logprobs": [None, 2][int(rng.integers(2))],
        "prompt_logprobs": [None, None, 0][int(rng.integers(3))],
        "min_tokens": int(rng.integers(0, max_tokens + 1)),
        "stop_token_ids": tuple(rng.integers(0, 96, int(rng.choice([0, 3]))).tolist()),
        "stop": tuple(chr(c) for c in rng.integers(33, 127, int(rng.choice([0, 3])))),
    }
    eos = tuple(rng.integers(0, 96, int(rng.choice([0, 2]))).tolist())
    return Request(id, tuple(prompt), SamplingParams(max_tokens, **sampling), eos_token_ids=eos)


@pytest.mark.parametrize("kind", ["reference", "portable"])
@given(st.integers(0, 2**32))
@settings(max_examples=30, derandomize=True, deadline=None)
def test_nobody_can_tell(kind: str, seed: int) -> None:
    """Few blocks, so that requests are preempted, find each other's prefixes, and compute what they said again."""
    rng = np.random.default_rng(seed)
    requests = [random_request(str(i), rng) for i in range(5)]
    num_blocks = int(rng.choice([5, 8, 24]))
    plain, _ = answers(kind, requests, num_blocks, "none")
    guessed, engine = answers(kind, requests, num_blocks, "ngram")
    assert guessed == plain
    assert engine.stats().draft_tokens >= sum(engine.stats().accepted_tokens)


def test_guesses_are_right_and_reported() -> None:
    """The tiny model goes in circles when it is greedy."""
    requests = [Request(str(i), tuple(tokens_for(i, 20)), SamplingParams(60, temperature=0.0)) for i in range(3)]
    plain, slow = answers("portable", requests, 24, "none")
    guessed, fast = answers("portable", requests, 24, "ngram")
    assert guessed == plain
    assert fast.stats().steps < slow.stats().steps
    stats, done = fast.stats(), fast.collector.drain_finished()
    assert 0 < sum(stats.accepted_tokens) <= stats.draft_tokens
    assert sum(d.num_draft_tokens for d in done) == stats.draft_tokens
    assert sum(d.num_accepted_tokens for d in done) == sum(stats.accepted_tokens)
    assert [d.num_generated_tokens for d in done] == [60, 60, 60]
    assert (slow.stats().drafts, slow.stats().draft_tokens, slow.stats().accepted_tokens) == (0, 0, ())


def test_tokens_after_a_stop_string_were_never_said() -> None:
    """Several tokens of one step: the stop string's last one is the request's last one."""
    [alone] = answers("portable", [Request("a", tuple(tokens_for(1, 20)), SamplingParams(60, temperature=0.0))], 24, "none")[
        0
    ].values()
    for position in range(30, 45):
        stop = alone.text[position - 12 : position]
        sampling = SamplingParams(60, temperature=0.0, stop=(stop,), logprobs=0)
        request = Request("a", tuple(tokens_for(1, 20)), sampling)
        plain, _ = answers("portable", [request], 24, "none")
        guessed, engine = answers("portable", [request], 24, "ngram")
        assert guessed == plain
        [done] = engine.collector.drain_finished()
        assert done.num_generated_tokens == len(plain["a"].tokens) == len(plain["a"].logprobs)
        assert engine.stats().generation_tokens == done.num_generated_tokens
