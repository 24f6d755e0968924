"""What sampling means: one row of logits to one token, in numpy and float64. The C++ sampler is held against it.

Order of events: log-probabilities come from the raw logits; then logit bias, penalties, masks, temperature, top-k,
top-p among what top-k left, min-p; then one draw. Every filter keeps a prefix of the same total order, logit descending
then token id ascending, so ties are settled by the token id. The draw inverts the cumulative distribution over the kept
tokens in id order at a number that depends on nothing but the request's seed and the token's position.

Knows nothing of batches, threads or requests' lifetimes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forno.errors import ConstraintError, NumericsError
from forno.request import SamplingParams, TokenLogprobs

GREEDY_BELOW = 1e-5
"""Temperatures this low differ from greedy only by overflow."""
_SMALLEST = -87.0
"""Below this many nats under the best token a weight counts as 0: exp would be denormal in float32."""


@dataclass(frozen=True, slots=True)
class SamplingContext:
    """What the next token of one request depends on besides its logits."""

    prompt: Sequence[int]
    generated: Sequence[int] = ()
    seed: int = 0
    eos_token_ids: Sequence[int] = ()
    mask: np.ndarray | None = None
    """uint32 ``[ceil(vocab / 32)]``, bit ``t`` set where token ``t`` is allowed; None allows all."""

    @property
    def position(self) -> int:
        """Position of the token to be drawn."""
        return len(self.prompt) + len(self.generated)


def sample(logits: np.ndarray, sampling: SamplingParams, context: SamplingContext) -> int:
    """The next token id from ``logits`` (float32 ``[vocab]``).

    Raises ``NumericsError`` if a logit is NaN or infinite, ``ConstraintError`` if no token is allowed.
    """
    if not np.isfinite(logits).all():
        raise NumericsError("the logits contain NaN or infinity")
    adjusted = adjust(logits, sampling, context)
    if not np.isfinite(adjusted.max()):
        raise ConstraintError("no token is allowed")
    if sampling.temperature < GREEDY_BELOW:
        return int(adjusted.argmax())
    kept = kept_tokens(adjusted, sampling)
    cumulative = np.cumsum(_weights(adjusted, sampling.temperature)[kept])
    target = uniform(context.seed, context.position) * cumulative[-1]
    return int(kept[np.searchsorted(cumulative, target, side="right")])


def adjust(logits: np.ndarray, sampling: SamplingParams, context: SamplingContext) -> np.ndarray:
    """Logit bias, then penalties, then the masks of ``min_tokens`` and of a constraint. float64 ``[vocab]``."""
    x = logits.astype(np.float64)
    for token, bias in sampling.logit_bias.items():
        x[token] += bias
    seen = np.unique(np.array([*context.prompt, *context.generated], np.int64))
    x[seen] = np.where(x[seen] > 0, x[seen] / sampling.repetition_penalty, x[seen] * sampling.repetition_penalty)
    made, counts = np.unique(np.array(context.generated, np.int64), return_counts=True)
    x[made] -= sampling.frequency_penalty * counts + sampling.presence_penalty
    if len(context.generated) < sampling.min_tokens:
        x[ending_tokens(sampling, context.eos_token_ids)] = -np.inf
    if context.mask is not None:
        allowed = np.unpackbits(context.mask.view(np.uint8), bitorder="little")[: len(x)].astype(bool)
        x[~allowed] = -np.inf
    return x


def ending_tokens(sampling: SamplingParams, eos_token_ids: Sequence[int]) -> list[int]:
    """Tokens that would end the request, which ``min_tokens`` masks."""
    return sorted({*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)})


def kept_tokens(adjusted: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """Ids that survive top-k, then top-p, then min-p; ascending."""
    order = np.lexsort((np.arange(len(adjusted)), -adjusted))
    order = order[np.isfinite(adjusted[order])]
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    weights = _weights(adjusted, sampling.temperature)
    if sampling.top_p < 1.0:
        cumulative = np.cumsum(weights[order])
        order = order[: np.searchsorted(cumulative, sampling.top_p * cumulative[-1]) + 1]
    if sampling.min_p > 0.0:
        least = adjusted.max() + sampling.temperature * np.log(sampling.min_p)
        order = order[adjusted[order] >= least]
    return np.sort(order)


def _weights(adjusted: np.ndarray, temperature: float) -> np.ndarray:
    scaled = (adjusted - adjusted.max()) / temperature
    return np.where(scaled < _SMALLEST, 0.0, np.exp(np.maximum(scaled, _SMALLEST)))


def logprobs(logits: np.ndarray, token: int, count: int) -> TokenLogprobs:
    """Log-softmax of the raw ``logits`` at ``token``, its rank, and the ``count`` most likely tokens, best first."""
    x = logits.astype(np.float64)
    scores = x - (x.max() + np.log(np.exp(x - x.max()).sum()))
    order = np.lexsort((np.arange(len(x)), -x))
    rank = int(np.flatnonzero(order == token)[0]) + 1
    top = tuple((int(t), float(scores[t])) for t in order[:count])
    return TokenLogprobs(token, float(scores[token]), rank, top)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), the same for the same seed and position: Philox4x32-10 (Salmon et al., SC'11).

    The key is the seed's 64 bits, the counter is the position; 53 bits of the first two words are used.
    """
    word = 0xFFFFFFFF
    key = [seed & word, seed >> 32 & word]
    c = [position & word, 0, 0, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ key[0], b & word, a >> 32 ^ c[3] ^ key[1], a & word]
        key = [(key[0] + 0x9E3779B9) & word, (key[1] + 0xBB67AE85) & word]
    return ((c[0] >> 5) << 26 | c[1] >> 6) * 2.0**-53
