"""The C++ sampler against its numpy definition."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno import _native
from forno.kernels.reference import sampling as reference
from forno.kernels.reference.sampling import SamplingContext
from forno.request import SamplingParams
from forno.runner.native import native_sampling
from forno.runner.results import DRAW, token_logprobs

NO_TARGET = -1
NO_MASK = np.empty(0, np.uint32)


def draw(logits: np.ndarray, sampling: SamplingParams, context: SamplingContext, target: int = NO_TARGET) -> Any:
    native = native_sampling(sampling, context.eos_token_ids, context.seed, len(logits))
    prompt, generated = (np.array(t, np.int32) for t in (context.prompt, context.generated))
    mask = NO_MASK if context.mask is None else context.mask
    return np.frombuffer(_native.sample(logits, prompt, generated, native, target, mask), DRAW)[0]


def random_logits(rng: np.random.Generator, vocab: int, spread: float, ties: bool) -> np.ndarray:
    logits = rng.normal(0.0, spread, vocab)
    return (np.round(logits) if ties else logits).astype(np.float32)


def test_the_record_layout_is_the_same_on_both_sides() -> None:
    assert DRAW.itemsize == _native.DRAW_BYTES


def test_philox_known_answer() -> None:
    """All-zero key and counter give 6627e8d5 e169c58d (the authors' own test vector)."""
    assert reference.uniform(0, 0) == ((0x6627E8D5 >> 5 << 26) | (0xE169C58D >> 6)) * 2.0**-53


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_uniform(seed: int, position: int) -> None:
    assert _native.uniform(seed, position) == reference.uniform(seed, position)


@given(st.data())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_same_token_as_the_definition(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    vocab = data.draw(st.sampled_from([1, 2, 63, 64, 65, 130, 1000]))
    logits = random_logits(rng, vocab, data.draw(st.sampled_from([0.0, 0.5, 3.0, 30.0])), data.draw(st.booleans()))
    sampling = SamplingParams(
        max_tokens=100,
        temperature=data.draw(st.sampled_from([0.0, 1e-3, 0.5, 1.0, 2.0])),
        top_k=data.draw(st.sampled_from([0, -1, 1, 2, 10, 70, 10**6])),
        top_p=data.draw(st.sampled_from([1.0, 0.99, 0.5, 0.01])),
        min_p=data.draw(st.sampled_from([0.0, 0.05, 1.0])),
        presence_penalty=data.draw(st.sampled_from([0.0, 1.5])),
        frequency_penalty=data.draw(st.sampled_from([0.0, -0.5])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.3])),
        logit_bias={int(rng.integers(vocab)): 3.0} if data.draw(st.booleans()) else {},
        min_tokens=data.draw(st.sampled_from([0, 20])),
    )
    mask = rng.integers(0, 2**32, -(-vocab // 32), dtype=np.uint32)
    mask[0] |= 1
    context = SamplingContext(
        prompt=rng.integers(0, vocab, 5).tolist(),
        generated=rng.integers(0, vocab, data.draw(st.integers(0, 30))).tolist(),
        seed=data.draw(st.integers(0, 2**63)),
        eos_token_ids=(vocab - 1,) if vocab > 1 else (),
        mask=mask if data.draw(st.booleans()) else None,
    )
    found = draw(logits, sampling, context)
    assert found["error"] == 0
    assert found["token"] == reference.sample(logits, sampling, context)


@pytest.mark.parametrize("ties", [False, True])
def test_logprobs_rank_and_alternatives(ties: bool) -> None:
    rng = np.random.default_rng(1)
    for vocab in (3, 64, 999):
        logits = random_logits(rng, vocab, 4.0, ties)
        sampling = SamplingParams(logprobs=20, prompt_logprobs=7, seed=3, logit_bias={0: 50.0})
        context = SamplingContext(prompt=(0,), seed=3)
        for target, count in ((NO_TARGET, 20), (int(rng.integers(vocab)), 7)):
            found = token_logprobs(draw(logits, sampling, context, target))
            expected = reference.logprobs(logits, found.token, count)
            assert found.token == (reference.sample(logits, sampling, context) if target == NO_TARGET else target)
            assert (found.rank, [t for t, _ in found.top]) == (expected.rank, [t for t, _ in expected.top])
            assert found.logprob == pytest.approx(expected.logprob, abs=1e-5)
            assert [p for _, p in found.top] == pytest.approx([p for _, p in expected.top], abs=1e-5)


def test_no_logprobs_unless_asked() -> None:
    found = draw(np.zeros(10, np.float32), SamplingParams(), SamplingContext(prompt=(1,)))
    assert np.isnan(found["logprob"])
    assert (found["rank"], found["num_top"]) == (0, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 63, 99])
@pytest.mark.parametrize("target", [NO_TARGET, 5])
def test_a_logit_that_is_not_finite_is_an_error(bad: float, at: int, target: int) -> None:
    logits = np.zeros(100, np.float32)
    logits[at] = bad
    found = draw(logits, SamplingParams(prompt_logprobs=0), SamplingContext(prompt=(1,)), target)
    assert (found["error"], found["token"]) == (1, -1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_that_allows_nothing_is_an_error(temperature: float) -> None:
    context = SamplingContext(prompt=(1,), mask=np.zeros(4, np.uint32))
    found = draw(np.zeros(100, np.float32), SamplingParams(temperature=temperature), context)
    assert (found["error"], found["token"]) == (2, -1)


def test_draws_follow_the_distribution() -> None:
    """20,000 draws at consecutive positions: each frequency within five standard errors of its probability."""
    probabilities = np.array([0.5, 0.25, 0.15, 0.1])
    logits = np.log(probabilities).astype(np.float32)
    n = 20_000
    generated: list[int] = []
    counts = np.zeros(4)
    for position in range(n):
        context = SamplingContext(prompt=(0,), generated=generated, seed=position)
        counts[draw(logits, SamplingParams(), context)["token"]] += 1
    errors = np.abs(counts / n - probabilities) / np.sqrt(probabilities * (1 - probabilities) / n)
    assert errors.max() < 5.0
