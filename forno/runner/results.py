"""From the executor's draw records to a ``StepResult``. Knows the records' layout and nothing of how they came about."""

from __future__ import annotations

import numpy as np

from forno.errors import ConstraintError, EngineError, NumericsError
from forno.request import MAX_LOGPROBS, TokenLogprobs

DRAW = np.dtype(
    [
        ("row", "<i4"),
        ("target", "<i4"),
        ("token", "<i4"),
        ("error", "<i4"),
        ("logprob", "<f4"),
        ("rank", "<i4"),
        ("num_top", "<i4"),
        ("top_ids", "<i4", MAX_LOGPROBS),
        ("top_logprobs", "<f4", MAX_LOGPROBS),
    ]
)
"""``Draw`` in sampler.hpp."""

NO_ERROR = 0
WRONG_DRAFT = 4
"""Drawn after a draft token that was not what was drawn in its place: no result, and nobody's failure."""
_ERRORS = {
    1: lambda: NumericsError("the model's logits contain NaN or infinity; the weights or the prompt's values are out of range"),
    2: lambda: ConstraintError("the constraint, together with the masked tokens, leaves no token to choose"),
    3: lambda: EngineError("the request already holds as many tokens as it was admitted for"),
}


def draw_error(code: int) -> Exception:
    """The exception that an error code stands for."""
    return _ERRORS[code]()


def token_logprobs(draw: np.void) -> TokenLogprobs:
    """The scores of one draw record."""
    count = int(draw["num_top"])
    top = zip(draw["top_ids"][:count].tolist(), draw["top_logprobs"][:count].tolist(), strict=True)
    return TokenLogprobs(int(draw["token"]), float(draw["logprob"]), int(draw["rank"]), tuple(top))
