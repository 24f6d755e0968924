"""A runner that computes nothing and checks everything: the oracle of the scheduler's and engine's tests.

The token after a history is a function of the *whole* history, so a lost, repeated or misplaced token changes every
later one. The KV cache is modelled too: a slot holds the history it was computed from, and before a row runs, each
earlier position of its block table must hold exactly the row's own history.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from forno.request import FinishReason, Request, Row, StepPlan, StepResult, TokenLogprobs

VOCAB = 251


def root(request: Request) -> int:
    """The history before the first token. Salts differ here, so content shared across salts is caught."""
    return crc32(request.cache_salt.encode())  # hash() of a text differs from run to run


def some_tokens(seed: str, count: int) -> tuple[int, ...]:
    """``count`` token ids that differ from seed to seed and are the same in every run."""
    return tuple(hash((crc32(seed.encode()), i)) % 250 for i in range(count))


def extend(history: int, token: int) -> int:
    return hash((history, token))


def next_token(history: int, vocab: int = VOCAB) -> int:
    return history % vocab


def logprob_of(history: int, token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -(hash((history, token, 1)) % 1000) / 100, 1)


def unbatched(request: Request, vocab: int = VOCAB) -> tuple[tuple[int, ...], FinishReason]:
    """What the request must generate, whatever else runs: one token at a time, no cache, no scheduler."""
    sampling, history, out = request.sampling, root(request), []
    for token in request.prompt:
        history = extend(history, token)
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(request.eos_token_ids))
    while len(out) < sampling.max_tokens:
        out.append(next_token(history, vocab))
        history = extend(history, out[-1])
        if out[-1] in stops and len(out) > sampling.min_tokens:
            return tuple(out), FinishReason.STOP
    return tuple(out), FinishReason.LENGTH


class FakeRunner:
    """Implements ``forno.request.Runner``.

    ``burst``: tokens returned per sampling row without drafts. ``vocab``: with few tokens drafts are often right.
    ``fail``: (id, generated tokens) to an exception for that row. ``seconds``: what each step claims to have taken.
    ``on_run``: called with each plan.
    """

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        burst: int = 1,
        seconds: float = 0.01,
        on_run: Callable[[StepPlan], None] | None = None,
        vocab: int = VOCAB,
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.max_model_len = num_blocks * block_size
        self.burst, self.seconds, self.on_run, self.vocab = burst, seconds, on_run, vocab
        self.fail: dict[tuple[str, int], Exception] = {}
        self.requests: dict[int, Request] = {}
        self.tokens: dict[int, list[int]] = {}
        self.histories: dict[int, list[int]] = {}
        """``histories[i][p]``: history up to and with token ``p`` of resident request ``i``."""
        self.slots: dict[tuple[int, int], int] = {}
        """(block, offset) to the history it was computed from."""
        self.computed = 0
        self.plans: list[StepPlan] = []
        self._free: list[int] = []

    def admit(self, request: Request) -> int:
        index = self._free.pop() if self._free else len(self.requests)
        assert index not in self.requests
        self.requests[index], self.tokens[index], self.histories[index] = request, [], []
        self._append(index, request.prompt)
        return index

    def release(self, index: int) -> None:
        del self.requests[index], self.tokens[index], self.histories[index]
        self._free.append(index)

    def run(self, plan: StepPlan) -> StepResult:
        assert plan.rows, "an empty plan must not reach the runner"
        if self.on_run:
            self.on_run(plan)
        self.plans.append(plan)
        self._copy(plan)
        self._check_reads(plan)
        self._write(plan)
        tokens, logprobs, prompt_logprobs, errors = [], [], {}, {}
        for i, row in enumerate(plan.rows):
            request = self.requests[row.request]
            if request.sampling.prompt_logprobs is not None:
                prompt_logprobs[i] = self._prompt_logprobs(row.request, row.start, row.num_tokens)
            sampled = self._sample(row) if row.sample else ()
            made = len(self.tokens[row.request]) - len(request.prompt)
            if (error := self.fail.get((request.id, made))) is not None:
                errors[i], sampled = error, ()
            if row.drafts:  # what fails after a draft is come to again
                sampled = next((sampled[:n] for n in range(len(sampled)) if (request.id, made + n) in self.fail), sampled)
            logprobs.append(self._append(row.request, sampled))
            tokens.append(sampled)
        wanted = any(r.sampling.logprobs is not None for r in self.requests.values())
        return StepResult(tuple(tokens), tuple(logprobs) if wanted else (), prompt_logprobs, errors, self.seconds)

    def _copy(self, plan: StepPlan) -> None:
        for source, destination in plan.copies:
            assert source != destination, "a copy to where it came from"
            for offset in range(self.block_size):
                self.slots[destination, offset] = self.slots.get((source, offset), -1)

    def _check_reads(self, plan: StepPlan) -> None:
        assert len({row.request for row in plan.rows}) == len(plan.rows), "one row per request"
        for row in plan.rows:
            known, size = self.tokens[row.request], self.block_size
            assert row.num_tokens > 0, "an empty row"
            drafts, constraint = len(row.drafts), self.requests[row.request].constraint
            end = row.start + row.num_tokens - drafts
            assert end <= len(known), "a row computes tokens that do not exist"
            assert not drafts or (end == len(known) > row.start and constraint is None), "drafts that cannot be verified"
            assert row.start + row.num_tokens <= len(row.blocks) * size, "a row is longer than its block table"
            samples = self.requests[row.request].sampling.max_tokens > 0
            assert row.sample == (samples and end == len(known)), "samples elsewhere than at the end"
            for p in range(row.start):
                held = self.slots.get((row.blocks[p // size], p % size))
                assert held == self.histories[row.request][p], f"position {p} is not in the cache"

    def _write(self, plan: StepPlan) -> None:
        written: set[tuple[int, int]] = set()
        read = {(row.blocks[p // self.block_size], p % self.block_size) for row in plan.rows for p in range(row.start)}
        for row in plan.rows:
            histories = list(self.histories[row.request])
            for draft in row.drafts:
                histories.append(extend(histories[-1], draft))
            for p in range(row.start, row.start + row.num_tokens):
                slot = (row.blocks[p // self.block_size], p % self.block_size)
                assert slot not in written, "two rows write one slot"
                assert slot not in read, "a row overwrites what another reads"
                written.add(slot)
                self.slots[slot] = histories[p]
            self.computed += row.num_tokens

    def _sample(self, row: Row) -> tuple[int, ...]:
        history, sampled = self.histories[row.request][-1], []
        for i in range(len(row.drafts) + 1 if row.drafts else self.burst):
            if row.drafts and tuple(sampled) != row.drafts[:i]:
                break
            sampled.append(next_token(history, self.vocab))
            history = extend(history, sampled[-1])
        return tuple(sampled)

    def _append(self, index: int, tokens: tuple[int, ...]) -> tuple[TokenLogprobs, ...]:
        histories, logprobs = self.histories[index], []
        for token in tokens:
            history = histories[-1] if histories else root(self.requests[index])
            logprobs.append(logprob_of(history, token))
            self.tokens[index].append(token)
            histories.append(extend(history, token))
        return tuple(logprobs)

    def _prompt_logprobs(self, index: int, start: int, num_tokens: int) -> tuple[TokenLogprobs, ...]:
        prompt = self.requests[index].prompt
        stop = min(start + num_tokens, len(prompt) - 1)
        return tuple(logprob_of(self.histories[index][p], prompt[p + 1]) for p in range(start, stop))
