"""``Sequence``: the scheduler's record of one request, and ``Update``: what a step did to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from forno.cache import BlockTable
from forno.request import FinishReason, Request, Row, TokenLogprobs
from forno.scheduler.drafter import Drafter


class State(Enum):
    WAITING = auto()
    """Holds no blocks. New, preempted, or waiting for a block that someone else computes."""
    RUNNING = auto()
    """Holds blocks and takes part in steps."""
    FINISHED = auto()


class Sequence:
    """One live request: its tokens, how many of them are computed, and its blocks.

    The one-token rule: ``pending`` tokens lack cache entries. A new request has its whole prompt pending, a decoding
    one a single token, a preempted one everything that is no longer cached; nothing else tells them apart.
    """

    __slots__ = (
        "claimed",
        "computed",
        "drafter",
        "first_token",
        "index",
        "num_cached",
        "num_preemptions",
        "num_prompt",
        "rank",
        "request",
        "scheduled",
        "state",
        "stop_ids",
        "table",
        "tokens",
    )

    def __init__(self, request: Request, index: int, rank: tuple[int, float, int], table: BlockTable) -> None:
        sampling = request.sampling
        self.request = request
        self.index = index
        """The runner's."""
        self.rank = rank
        """(class, arrival, serial): lower goes first, and may take blocks from higher."""
        self.table = table
        self.tokens = list(request.prompt)
        self.num_prompt = len(request.prompt)
        self.computed = 0
        """Leading tokens whose cache entries exist."""
        self.claimed = 0
        """Leading blocks that others may wait for; see ``InFlight``."""
        self.state = State.WAITING
        self.stop_ids = frozenset(sampling.stop_token_ids + (() if sampling.ignore_eos else request.eos_token_ids))
        self.num_cached = 0
        """Prompt tokens found in the prefix cache when it was first scheduled."""
        self.num_preemptions = 0
        self.drafter: Drafter | None = None
        """Made when its next tokens are first guessed."""
        self.scheduled = self.first_token = 0.0
        """Seconds on the scheduler's clock; 0 if it has not happened."""

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_drafted(self) -> int:
        return 0 if self.drafter is None else self.drafter.drafted

    @property
    def num_accepted(self) -> int:
        """Of the draft tokens, those that were right."""
        return 0 if self.drafter is None else self.drafter.accepted

    @property
    def may_match(self) -> bool:
        """Whether cached blocks may replace computing. Prompt log-probabilities need every prompt position's logits."""
        return self.request.sampling.prompt_logprobs is None

    def row(self, num_tokens: int, drafts: tuple[int, ...] = ()) -> Row:
        sample = num_tokens >= self.pending and self.request.sampling.max_tokens > 0
        return Row(self.index, self.computed, num_tokens + len(drafts), self.table.ids, sample, drafts)

    def accept(self, sampled: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Append sampled tokens up to the first that ends the request; returns those kept and the reason, if any."""
        sampling = self.request.sampling
        count = self.num_generated
        for i, token in enumerate(sampled):
            count += 1
            if token in self.stop_ids and count > sampling.min_tokens:
                reason = FinishReason.STOP
            elif count >= sampling.max_tokens:
                reason = FinishReason.LENGTH
            else:
                continue
            self.tokens.extend(sampled[: i + 1])
            return sampled[: i + 1], reason
        self.tokens.extend(sampled)
        constraint = self.request.constraint
        done = bool(sampled) and constraint is not None and constraint.is_done()
        return sampled, FinishReason.STOP if done else None


@dataclass(slots=True)
class Update:
    """What one step did to one request."""

    sequence: Sequence
    time: float
    """Seconds on the scheduler's clock."""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_position: int = 0
    """Prompt position that the first of ``prompt_logprobs`` is about."""
    finish_reason: FinishReason | None = None
    error: Exception | None = None
