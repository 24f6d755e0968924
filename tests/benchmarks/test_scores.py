"""Scores against plain float64 formulas, and error bars against what they must cover."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.scores import Estimate, divergence, score, surprise, windows

VOCAB = 300


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.fixture
def logits() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    a = (8 * rng.standard_normal((150, VOCAB))).astype(np.float32)
    return a, a + (0.05 * rng.standard_normal(a.shape)).astype(np.float32)


def test_divergence_is_the_sum_over_the_vocabulary(logits: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = logits
    p, q = softmax(a), softmax(b)
    np.testing.assert_allclose(divergence(a, b), (p * np.log(p / q)).sum(1), atol=2e-7)
    assert (divergence(a, a) == 0).all()


def test_divergence_ignores_a_constant(logits: tuple[np.ndarray, np.ndarray]) -> None:
    a, _ = logits
    np.testing.assert_allclose(divergence(a, a + 3), 0, atol=1e-5)


def test_surprise_is_the_negative_log_of_the_targets_probability(logits: tuple[np.ndarray, np.ndarray]) -> None:
    a, _ = logits
    targets = np.arange(len(a)) % VOCAB
    targets[7] = -1
    found = surprise(a, targets)
    expected = -np.log(softmax(a)[np.arange(len(a)), targets])
    np.testing.assert_allclose(np.delete(found, 7), np.delete(expected, 7), rtol=1e-5)
    assert np.isnan(found[7])


def test_score_takes_targets_within_a_window_only(logits: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = logits
    tokens, window = np.arange(len(a)) % VOCAB, 100
    found = score(np.split(a, [window]), np.split(b, [window]), tokens, window)
    assert np.flatnonzero(np.isnan(found.nll)).tolist() == [99, 149]
    np.testing.assert_allclose(found.kl, divergence(a, b))
    np.testing.assert_allclose(found.nll[:99], surprise(b[:99], tokens[1:100]))
    assert found.perplexity == pytest.approx(np.exp(np.nanmean(found.nll)))
    assert found.top1.mean() > 0.9


def test_score_refuses_a_missing_window(logits: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = logits
    with pytest.raises(ValueError):
        score(np.split(a, [100]), [b[:100]], np.arange(len(a)), 100)


def test_windows_cover_the_text_once() -> None:
    text = np.arange(23)
    parts = list(windows(text, 10))
    assert [len(part) for part in parts] == [10, 10, 3]
    assert (np.concatenate(parts) == text).all()


def test_error_bars_cover_the_truth_and_know_of_neighbours() -> None:
    rng = np.random.default_rng(1)
    drift = np.repeat(rng.standard_normal(200), 64)  # neighbours agree: 12,800 positions say no more than 200
    estimate = Estimate.of(drift)
    assert estimate.error == pytest.approx(1 / np.sqrt(200), rel=0.2)
    assert abs(estimate.mean) < 3 * estimate.error


def test_a_nan_is_left_out() -> None:
    values = np.ones(256)
    values[3] = np.nan
    assert Estimate.of(values) == Estimate(1.0, 0.0)


@pytest.mark.parametrize(
    ("mean", "verdict"), [(-3.0, "better"), (-1.9, "no difference"), (2.0, "no difference"), (2.1, "worse")]
)
def test_verdicts_start_at_two_standard_errors(mean: float, verdict: str) -> None:
    assert Estimate(mean, 1.0).verdict == verdict
