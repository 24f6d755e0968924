"""Requests' sampling parameters in the form the executor keeps. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forno import _native
from forno.kernels.reference.sampling import ending_tokens
from forno.request import SamplingParams

NO_LOGPROBS = -1
_INT32_MAX = (1 << 31) - 1


def native_sampling(sampling: SamplingParams, eos_token_ids: Sequence[int], seed: int, vocab: int) -> Any:
    """``_native.Sampling`` for one request. Ending tokens outside the vocabulary cannot be drawn and are dropped."""
    native = _native.Sampling()
    native.temperature = sampling.temperature
    native.top_p = sampling.top_p
    native.min_p = sampling.min_p
    native.top_k = min(sampling.top_k, vocab)
    native.presence_penalty = sampling.presence_penalty
    native.frequency_penalty = sampling.frequency_penalty
    native.repetition_penalty = sampling.repetition_penalty
    native.min_tokens = min(sampling.min_tokens, _INT32_MAX)
    native.logprobs = NO_LOGPROBS if sampling.logprobs is None else sampling.logprobs
    native.prompt_logprobs = NO_LOGPROBS if sampling.prompt_logprobs is None else sampling.prompt_logprobs
    native.seed = seed & (1 << 64) - 1
    native.bias = list(sampling.logit_bias.items())
    native.ends = [token for token in ending_tokens(sampling, eos_token_ids) if 0 <= token < vocab]
    return native
