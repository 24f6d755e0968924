"""How far one server's predictions are from another's, from the log-probabilities that they tell. It knows numbers only.

A server tells the most likely tokens of each position, not all of them, so the divergence cannot be exact. Tokens that both
servers tell are compared one by one, all others together as one: the Kullback-Leibler divergence of such coarser distributions
is never larger than the exact one (the data-processing inequality), and 0 where both tell the same.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import exp, log

import msgspec

from forno.bench.corpus import Corpus

TOP = 20
"""Tokens that are asked for at each position; the text's own token comes besides."""
PIECES, WORDS = 4, 160
"""Texts, and words of each: about 850 positions, and prompts that no chunk holds whole."""
FLOOR = 1e-9
"""Least probability of all other tokens together: rounding may leave less than nothing."""

Position = Mapping[str, float]
"""Token -> log-probability."""


def texts(corpus: Corpus, seed: int = 0) -> list[str]:
    """Fixed texts to compare predictions on."""
    rng = random.Random(f"ablate:{seed}")
    return [corpus.draw(rng, WORDS) for _ in range(PIECES)]


class Accuracy(msgspec.Struct, kw_only=True, frozen=True):
    """One server's predictions against another's."""

    kl: float
    """Mean lower bound of the Kullback-Leibler divergence, in nats per token; 0 where all is identical."""
    worst: float
    """Largest of a position."""
    same_choice: float
    """Share of positions where both find the same token most likely."""
    covered: float
    """Mean probability of the tokens that were compared one by one."""
    positions: int
    identical: bool
    """Whether every log-probability is the same number."""


def compare(expected: Sequence[Position], got: Sequence[Position]) -> Accuracy | None:
    """``got`` against ``expected``, position by position; None where they are not of the same tokens."""
    if len(expected) != len(got) or not expected:
        return None
    bounds = [divergence(p, q) for p, q in zip(expected, got, strict=True)]
    same = sum(max(p, key=p.__getitem__) == max(q, key=q.__getitem__) for p, q in zip(expected, got, strict=True))
    covered = sum(sum(exp(p[t]) for t in p.keys() & q.keys()) for p, q in zip(expected, got, strict=True))
    return Accuracy(
        kl=sum(bounds) / len(bounds),
        worst=max(bounds),
        same_choice=same / len(bounds),
        covered=min(1.0, covered / len(bounds)),
        positions=len(bounds),
        identical=all(dict(p) == dict(q) for p, q in zip(expected, got, strict=True)),
    )


def divergence(p: Position, q: Position) -> float:
    """A lower bound of the divergence of ``q`` from ``p`` in nats: exactly 0 for equal distributions, else above 0."""
    common = sorted(p.keys() & q.keys())
    if all(p[t] == q[t] for t in common) and len(common) == len(p) == len(q):
        return 0.0
    total = sum(exp(p[t]) * (p[t] - q[t]) for t in common)
    rest_p, rest_q = (max(FLOOR, 1.0 - sum(exp(d[t]) for t in common)) for d in (p, q))
    return max(0.0, total + rest_p * log(rest_p / rest_q))


def positions_of(answer: object) -> list[Position]:
    """The predictions of every prompt position in a completion's JSON. Raises ``ValueError`` for anything else."""
    try:
        choices = sorted(answer["choices"], key=lambda c: c["index"])  # type: ignore[index]
        told = [position for choice in choices for position in choice["prompt_logprobs"] if position]
        return [{token: float(entry["logprob"]) for token, entry in position.items()} for position in told]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no log-probabilities of the prompt in the answer: {error!r}") from error
