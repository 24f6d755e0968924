"""What is refused at the door, and why. Everything let in can be finished."""

from __future__ import annotations

import math

from forno.cache import KvCache
from forno.config import SchedulerConfig
from forno.errors import PromptTooLongError, QueueFullError, RequestError
from forno.request import Request
from forno.scheduler.waiting import WaitingLine


class Admission:
    """The limits of one engine. ``check`` only reads, and may be called from another thread as a first, quick no."""

    def __init__(self, config: SchedulerConfig, cache: KvCache, max_model_len: int) -> None:
        self.config = config
        self.cache = cache
        self.max_model_len = max_model_len
        self._tokens_per_second = 0.0

    def check_size(self, request: Request) -> None:
        """Raises ``RequestError`` or ``PromptTooLongError`` if the request could never be finished."""
        prompt, wanted = len(request.prompt), request.sampling.max_tokens
        if prompt == 0:
            raise RequestError("the prompt is empty; it needs at least one token", "prompt")
        asked = f"{prompt} prompt tokens plus max_tokens={wanted} make {prompt + wanted}"
        if prompt + wanted > self.max_model_len:
            raise PromptTooLongError(
                f"{asked}, more than the context of {self.max_model_len} tokens (--max-model-len): "
                "shorten the prompt or lower max_tokens",
                "max_tokens" if prompt < self.max_model_len else "prompt",
            )
        if max(prompt, prompt + wanted - 1) > self.cache.capacity:  # the last token is never fed back
            raise PromptTooLongError(
                f"{asked}, more than the KV cache's {self.cache.capacity} tokens "
                f"({self.cache.num_blocks} blocks of {self.cache.block_size}): raise --kv-cache-memory or ask for less",
                "max_tokens" if prompt <= self.cache.capacity else "prompt",
            )
        budget = self.config.max_num_batched_tokens
        if not self.config.enable_chunked_prefill and prompt > budget:
            raise PromptTooLongError(
                f"the prompt has {prompt} tokens, more than the {budget} of one step (--max-num-batched-tokens), "
                "and --no-enable-chunked-prefill forbids to split it",
                "prompt",
            )

    def check_queue(self, request: Request, waiting: WaitingLine, running: int, arriving: int = 0) -> None:
        """Raises ``QueueFullError``. Requests that take a free seat in the next step do not count as queued.

        ``arriving`` requests were let in but have not reached the line yet.
        """
        free_seats = max(0, self.config.max_num_seqs - running)
        queued, limit = len(waiting) + arriving - free_seats, self.config.max_num_queued_reqs
        if limit and queued >= limit:
            raise QueueFullError(
                f"{queued} requests are waiting, the most this server queues is {limit} (--max-num-queued-reqs): retry later",
                self.retry_after(waiting),
            )
        tokens, limit = waiting.num_tokens + len(request.prompt), self.config.max_num_queued_tokens
        if limit and len(waiting) and tokens > limit:
            raise QueueFullError(
                f"{tokens} prompt tokens would be waiting, the most this server queues is {limit} "
                "(--max-num-queued-tokens): retry later",
                self.retry_after(waiting),
            )

    def observe(self, tokens: int, seconds: float) -> None:
        """A step computed ``tokens`` in ``seconds``: what ``retry_after`` is estimated from."""
        if seconds > 0:
            rate = tokens / seconds
            self._tokens_per_second += (rate - self._tokens_per_second) * (0.1 if self._tokens_per_second else 1.0)

    def retry_after(self, waiting: WaitingLine) -> float:
        """Whole seconds, 1 to 60, until the tokens now waiting are computed at the recent rate."""
        if not self._tokens_per_second:
            return 1.0
        return float(min(60, max(1, math.ceil(waiting.num_tokens / self._tokens_per_second))))
