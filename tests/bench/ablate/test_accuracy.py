"""The bound on the divergence of predictions: 0 where they are equal, below the exact one elsewhere."""

from __future__ import annotations

from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.bench.ablate.accuracy import compare, divergence, positions_of, texts
from forno.bench.corpus import Corpus


def distribution(weights: list[int]) -> dict[str, float]:
    total = sum(weights)
    return {str(i): log(w / total) for i, w in enumerate(weights)}


def likeliest(p: dict[str, float], count: int) -> dict[str, float]:
    return dict(sorted(p.items(), key=lambda pair: -pair[1])[:count])


weights = st.lists(st.integers(1, 1000), min_size=12, max_size=12)


@settings(max_examples=100)
@given(weights, weights, st.integers(1, 12))
def test_never_above_the_exact_divergence(a: list[int], b: list[int], told: int) -> None:
    p, q = distribution(a), distribution(b)
    exact = sum(exp(p[t]) * (p[t] - q[t]) for t in p)
    bound = divergence(likeliest(p, told), likeliest(q, told))
    assert 0.0 <= bound <= exact + 1e-9
    assert divergence(p, q) == pytest.approx(exact, abs=1e-6)


@given(weights, st.integers(1, 12))
def test_equal_predictions_have_none_exactly(a: list[int], told: int) -> None:
    p = likeliest(distribution(a), told)
    assert divergence(p, dict(p)) == 0.0


def test_a_comparison_says_what_it_rests_on() -> None:
    p, q = distribution([8, 1, 1]), distribution([1, 8, 1])
    same, other = compare([p, p], [p, p]), compare([p, p], [p, q])
    assert same is not None
    assert other is not None
    assert (same.kl, same.identical, same.same_choice, same.positions) == (0.0, True, 1.0, 2)
    assert other.worst == pytest.approx(0.7 * log(8))
    assert other.kl == pytest.approx(other.worst / 2)
    assert (other.identical, other.same_choice) == (False, 0.5)
    assert other.covered == pytest.approx(1.0)


def test_predictions_of_different_texts_are_not_compared() -> None:
    assert compare([distribution([1, 2])], []) is None
    assert compare([], []) is None


def test_positions_come_in_the_order_of_the_prompts() -> None:
    choices = [
        {"index": 1, "prompt_logprobs": [None, {"5": {"logprob": -2}}]},
        {"index": 0, "prompt_logprobs": [None, {"3": {"logprob": -1.0}}]},
    ]
    assert positions_of({"choices": choices}) == [{"3": -1.0}, {"5": -2.0}]


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"choices": [{"index": 0}]}, {"choices": [{"index": 0, "prompt_logprobs": 3}]}]
)
def test_answers_without_predictions(answer: object) -> None:
    with pytest.raises(ValueError, match="no log-probabilities"):
        positions_of(answer)


def test_the_texts_are_the_same_every_time() -> None:
    assert texts(Corpus.load()) == texts(Corpus.load())
    assert len({*texts(Corpus.load())}) == 4
