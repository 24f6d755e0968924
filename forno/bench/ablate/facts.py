"""What a program costs by its own account: the numbers that sentences are made of. It knows no program and no model."""

from __future__ import annotations

import msgspec

PROMPT = 512
"""Tokens of the prompt whose costs stand for all prompts."""
BATCH, CONTEXT = 16, 512
"""The decode step that stands for all of them: sequences, and cached tokens of each."""


class Step(msgspec.Struct, kw_only=True, frozen=True):
    """The least that one step computes and moves."""

    flops: float
    weight_bytes: float
    kv_bytes: float
    activation_bytes: float

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes


class Facts(msgspec.Struct, kw_only=True, frozen=True):
    """One arm's program in numbers."""

    weight_bytes: float
    """Of all weights as they are held."""
    kv_bytes_per_token: float
    num_ops: int
    prompt: Step
    """A prompt of ``PROMPT`` tokens, computed at once."""
    decode: Step
    """``BATCH`` sequences that compute one token after ``CONTEXT``."""
    budget: int
    """Most tokens of a step."""
    max_model_len: int = 0
    """Longest request; 0: not limited by an option."""
    formats: tuple[str, ...] = ()
    """Of the matrices."""
