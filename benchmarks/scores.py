"""How far an engine's logits are from the definition's, position by position, with error bars.

Knows arrays only: no engine, no file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

ROWS = 64
"""Positions scored at a time, so that temporaries stay in the cache."""
BLOCK = 64
"""Neighbouring positions averaged before a standard error is taken: they are not independent of each other."""


@dataclass(frozen=True, slots=True)
class Scores:
    """One number per position."""

    kl: np.ndarray
    """Kullback-Leibler divergence of the definition's next-token distribution from the engine's, in nats."""
    nll: np.ndarray
    """Negative log-likelihood of the token that comes next in the text, in nats; NaN at the last position of a window."""
    top1: np.ndarray
    """Whether both think the same token likeliest."""

    @property
    def perplexity(self) -> float:
        return math.exp(float(np.nanmean(self.nll)))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: np.ndarray) -> Estimate:
        """The mean over positions (NaNs left out); the error from means over blocks of neighbours."""
        values = values[~np.isnan(values)]
        blocks = np.array([part.mean() for part in np.array_split(values, max(2, len(values) // BLOCK))])
        return cls(float(values.mean()), float(blocks.std(ddof=1) / math.sqrt(len(blocks))))

    @property
    def verdict(self) -> str:
        """What a difference of errors (ours minus theirs) says at two standard errors."""
        if abs(self.mean) <= 2 * self.error:
            return "no difference"
        return "better" if self.mean < 0 else "worse"


def score(reference: Iterable[np.ndarray], logits: Iterable[np.ndarray], tokens: np.ndarray, window: int) -> Scores:
    """Scores of every position. Both give float32 ``[rows, vocab]`` per window of the text, in order.

    Raises ``ValueError`` if there is not one array per window.
    """
    kl, nll, top1 = [], [], []
    for text, a, b in zip(windows(tokens, window), reference, logits, strict=True):
        targets = np.append(text[1:], -1)
        for begin in range(0, len(text), ROWS):
            part = slice(begin, begin + ROWS)
            kl.append(divergence(a[part], b[part]))
            nll.append(surprise(b[part], targets[part]))
            top1.append(a[part].argmax(1) == b[part].argmax(1))
    return Scores(np.concatenate(kl), np.concatenate(nll), np.concatenate(top1))


def windows(tokens: np.ndarray, window: int) -> Iterator[np.ndarray]:
    """The text in pieces of ``window`` tokens; the last one may be shorter."""
    for begin in range(0, len(tokens), window):
        yield tokens[begin : begin + window]


def divergence(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """KL(softmax(a) || softmax(b)) of each row, float64: ``sum p (a - b)`` and the two normalizers, which cancel well."""
    norm_a, norm_b = log_sum_exp(a), log_sum_exp(b)
    p = np.exp(a - norm_a[:, None].astype(np.float32))
    return (p * (a - b)).sum(1, dtype=np.float64) / p.sum(1, dtype=np.float64) - (norm_a - norm_b)


def surprise(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Negative log-likelihood of each row's target, float64; NaN where the target is -1."""
    found = log_sum_exp(logits) - logits[np.arange(len(logits)), targets]
    return np.where(targets < 0, np.nan, found)


def log_sum_exp(x: np.ndarray) -> np.ndarray:
    """Of each row, float64."""
    top = x.max(1)
    return top + np.log(np.exp(x - top[:, None]).sum(1, dtype=np.float64))
