"""The plain data that crosses package boundaries: requests, the step plan and its result, outputs.

Nothing here knows a tensor, a socket or a tokenizer.

A *row* is the only unit of work. Prefill, a prefill chunk, a decode, a prefix hit, a resumed request and
a verified draft are the same row with different numbers, so nothing above the runner asks "is this prefill?".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from forno.errors import RequestError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request turns logits into tokens. Valid by construction: see ``__post_init__``."""

    max_tokens: int = 16
    """Most tokens to generate, at least 1 unless only prompt log-probabilities are wanted (then 0)."""
    min_tokens: int = 0
    """End-of-sequence and stop tokens are masked until this many tokens are out."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass kept, in (0, 1]."""
    top_k: int = 0
    """Candidates kept; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Least probability relative to the best candidate, in [0, 1]."""
    presence_penalty: float = 0.0
    """Subtracted once from tokens already generated, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence among generated tokens, in [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output; > 0."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id to a bias in [-100, 100], added before anything else."""
    seed: int | None = None
    """Same seed, same request: same tokens, whatever the batch. None draws one at admission."""
    logprobs: int | None = None
    """Alternatives to report per generated token (0 reports the sampled one only); None reports nothing."""
    prompt_logprobs: int | None = None
    """The same for prompt positions 1 and on. Such a request skips the prefix cache: it needs every logit."""
    stop: tuple[str, ...] = ()
    """Text that ends generation; not part of the output."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end generation."""
    ignore_eos: bool = False
    """Keep going past the model's end-of-sequence tokens."""

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, 0, math.inf)
        _check("min_tokens", self.min_tokens, 0, self.max_tokens)
        _check("temperature", self.temperature, 0.0, 100.0)
        _check("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise RequestError("top_p must be above 0; for greedy decoding set temperature to 0", "top_p")
        _check("top_k", self.top_k, -1, math.inf)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name), 0, MAX_LOGPROBS)
        for token, bias in self.logit_bias.items():
            _check(f"logit_bias[{token}]", bias, -100.0, 100.0, param="logit_bias")


MAX_LOGPROBS = 20
"""Most alternatives a request may ask for, as OpenAI's API allows."""


def _check(name: str, value: float, low: float, high: float, param: str | None = None) -> None:
    if isinstance(value, bool) or not (low <= value <= high):  # NaN fails both comparisons
        bound = f"between {low} and {high}" if high != math.inf else f"at least {low}"
        raise RequestError(f"{name} must be {bound}, got {value!r}", param or name)


class TokenConstraint(Protocol):
    """Which tokens may come next (a JSON schema, a regex, a grammar). One instance per request; stateful.

    The runner calls ``fill_mask`` before sampling and ``accept`` after; both happen on the engine's thread.
    """

    def fill_mask(self, mask: Any) -> None:
        """Set bit ``t`` of ``mask`` (uint32 array, little-endian bits, ceil(vocab/32) words) for each allowed token."""

    def accept(self, token: int) -> None:
        """Advance by a sampled token. Raises ``ConstraintError`` if it was not allowed."""

    def is_done(self) -> bool:
        """Whether the text is complete and nothing but end-of-sequence may follow."""


@dataclass(frozen=True, slots=True)
class Request:
    """A validated request as the engine sees it. ``id`` is unique among live requests."""

    id: str
    prompt: tuple[int, ...]
    """Token ids, at least one."""
    sampling: SamplingParams = SamplingParams()
    arrival: float = 0.0
    """Seconds on the engine's clock."""
    priority: int = 0
    """Lower is served first under ``--scheduling-policy priority``."""
    cache_salt: str = ""
    """Requests share cached prefixes only with requests of the same salt."""
    group: str = ""
    """Children of one ``n`` > 1 request carry the same group: they share their prompt even with prefix caching off."""
    deadline: float | None = None
    """Seconds on the engine's clock after which the request fails with ``DeadlineError``."""
    constraint: TokenConstraint | None = None
    eos_token_ids: tuple[int, ...] = ()
    slo_class: str = ""
    """Which limits its latency is held against; the engine treats all alike."""


@dataclass(frozen=True, slots=True)
class Row:
    """Compute ``num_tokens`` tokens of one request from position ``start``."""

    request: int
    """Index into the runner's resident request table, as ``Runner.admit`` returned it."""
    start: int
    """Tokens of this request whose cache entries exist already, computed or matched."""
    num_tokens: int
    """Tokens to compute now: 1 for a decode, a chunk for a prefill, k + 1 for a verified draft."""
    blocks: tuple[int, ...]
    """The request's whole block table; covers at least ``start + num_tokens`` positions."""
    sample: bool
    """Whether the last position yields a token."""
    drafts: tuple[int, ...] = ()
    """Guesses of the tokens that follow the request's own; the last of ``num_tokens``. Each position from the last known
    token on is sampled as if the guesses before it were right, and counts as long as they were."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """For whom to compute in one step: ids and counts only."""

    rows: tuple[Row, ...]
    copies: tuple[tuple[int, int], ...] = ()
    """(source, destination) blocks to copy before computing."""

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_drafts(self) -> int:
        return sum(len(row.drafts) for row in self.rows)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: the chosen token first, then the best alternatives, best first."""

    token: int
    logprob: float
    rank: int
    """1 is the most likely token of the vocabulary."""
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step produced, in the order of ``StepPlan.rows``."""

    tokens: tuple[tuple[int, ...], ...]
    """Per row: the sampled tokens, empty where ``sample`` was false; one, and one more per draft token that was right."""
    logprobs: tuple[tuple[TokenLogprobs, ...], ...] = ()
    """Per row, aligned with ``tokens``; the outer tuple is empty if no request asked."""
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    """Row index to the log-probabilities of prompt tokens ``start + 1 ..`` whose logits this step computed."""
    errors: Mapping[int, Exception] = field(default_factory=dict)
    """Row index to what went wrong with that row alone (NaN logits, a broken constraint). Others are unaffected."""
    seconds: float = 0.0
    """Wall time of the step, or predicted time under a simulator."""
    mask_seconds: float = 0.0
    """Of those, finding out which tokens constraints allow next."""
    cpu_seconds: float = 0.0
    """Time that the threads had their cores, summed, and as if they had had them where they slept for want of work: threads x
    seconds unless others had the cores. 0: unknown."""
    shared_keys: int = 0
    """Cached tokens that layers without a window read once for several rows, counted for each row that was spared."""


class Runner(Protocol):
    """Who computes. ``CpuRunner``, ``GpuRunner``, ``SimulatedRunner``, a fake in tests.

    Not thread-safe: one thread calls all methods. ``run`` releases the GIL while it computes.
    """

    @property
    def num_blocks(self) -> int:
        """KV blocks that a plan may name: 0 to ``num_blocks - 1``."""

    @property
    def block_size(self) -> int:
        """Tokens per block."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of one request, prompt and output together."""

    def admit(self, request: Request) -> int:
        """Make tokens and sampling parameters resident; returns the index for ``Row.request``.

        Raises ``RequestError``, with nothing changed, for what it cannot hold or compute.
        """

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step. The runner appends each sampled token to its own copy of the request.

        What goes wrong with one row is in ``StepResult.errors``; what this raises has failed the whole step.
        """

    def release(self, index: int) -> None:
        """Forget a request. Its index may be reused."""


class FinishReason(StrEnum):
    STOP = "stop"
    """End-of-sequence, a stop token, a stop string, or a completed constraint."""
    LENGTH = "length"
    """``max_tokens`` or the model's context length."""
    ABORT = "abort"
    """Cancelled by the client."""
    ERROR = "error"
    """See ``RequestOutput.error``."""


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Seconds on the engine's clock; 0 where the event has not happened."""

    arrival: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step added to one request. Deltas, not totals, except the counts."""

    id: str
    text: str
    """New text, withheld while it may still become part of a stop string or of an incomplete character."""
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Given once, with the first output, covering all prompt positions from 1."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended it, if one did."""
    error: Exception | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_draft_tokens: int = 0
    """Guesses that were verified for it, and of them those that were right: totals, like the other counts."""
    num_accepted_tokens: int = 0
    times: RequestTimes = RequestTimes()
