"""How many prompt tokens a step may compute beside decodes, so that a long prompt does not hold up everybody else.

What decodes and prompt tokens take is learned from the steps: it depends on the machine, the model and how deep in its
context a prompt is. Knows counts and seconds; no result depends on it, since no row depends on the others in its step.
"""

from __future__ import annotations

from forno.config import LEAST_MIXED, SchedulerConfig

WEIGHTS = 8
"""Reading the weights takes a step as long as this many decodes take in a large batch."""
FIRST_RATIO = 1.3
"""A decode's time over a prompt token's, until both were seen: it reads its context and its logits are computed."""
CROWD = 5.0
"""How much more prompts get where as many wait as decode."""
LEARNING_RATE = 0.2


class Pacing:
    """The token budget of each step. ``budget`` and ``observe`` alternate."""

    __slots__ = ("_decode", "_decodes", "_prompt", "config")

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self._decodes = 0
        self._decode = self._prompt = 0.0
        """Seconds per decode and per prompt token; 0 until seen."""

    def budget(self, decodes: int, others: int) -> int:
        """Tokens of the next step, when ``decodes`` sequences decode and ``others`` compute prompts or could join.

        With one prompt among many decodes, a step takes about ``mixed_step_stretch`` times as long as without it. Prompts
        get a larger share the more of them there are: what delays few streams a little spares many a long wait.
        """
        self._decodes = decodes
        most, stretch = self.config.max_num_batched_tokens, self.config.mixed_step_stretch
        if not decodes or not stretch or not self.config.enable_chunked_prefill:
            return most
        ratio = self._decode / self._prompt if self._decode and self._prompt else FIRST_RATIO
        share = (stretch - 1.0) * (1.0 + CROWD * others / decodes)
        prompt = share * ratio * (decodes + WEIGHTS)
        return min(most, max(LEAST_MIXED, decodes + int(prompt)))

    def observe(self, tokens: int, seconds: float) -> None:
        """The step computed ``tokens``, those of decodes included, in ``seconds``."""
        prompt = tokens - self._decodes
        if seconds <= 0.0:
            return
        if prompt <= 0:
            self._decode = _average(self._decode, seconds / (self._decodes + WEIGHTS))
        elif prompt >= LEAST_MIXED // 2:  # of fewer, the time says little
            decodes = self._decode * (self._decodes + WEIGHTS) if self._decodes else 0.0
            self._prompt = _average(self._prompt, max(seconds - decodes, seconds / 8) / prompt)


def _average(old: float, new: float) -> float:
    return old + LEARNING_RATE * (new - old) if old else new
