"""What every runner asks of a request at its door, and the seed it gives to one that has none. Knows no backend."""

from __future__ import annotations

import secrets

from forno.errors import ConstraintError, PromptTooLongError, RequestError
from forno.request import Request, SamplingParams


def check_request(request: Request, vocab_size: int, max_model_len: int) -> None:
    """Raise ``RequestError`` for a token outside the vocabulary, ``PromptTooLongError`` for a prompt that cannot be held."""
    if len(request.prompt) > max_model_len:
        raise PromptTooLongError(f"the prompt has {len(request.prompt)} tokens; at most {max_model_len} fit", "prompt")
    for name, tokens in (("prompt", request.prompt), ("logit_bias", request.sampling.logit_bias)):
        if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
            bad = next(token for token in tokens if not 0 <= token < vocab_size)
            raise RequestError(f"{name} holds token {bad}, but the vocabulary ends at {vocab_size - 1}", name)


def seed_of(sampling: SamplingParams) -> int:
    """The request's own seed, or one drawn now."""
    return secrets.randbits(63) if sampling.seed is None else sampling.seed


def constraint_error(error: Exception) -> ConstraintError:
    """What a row is given when its constraint failed in whatever way: a grammar's fault is its own request's only."""
    return error if isinstance(error, ConstraintError) else ConstraintError(f"the constraint failed: {error}")
