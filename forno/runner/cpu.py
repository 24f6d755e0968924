"""``CpuRunner``: steps on the native executor. Requests and plans in, tokens out; the arrays in between are reused.

Knows no scheduling policy: it computes what a plan says, and the executor refuses a plan that does not fit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from forno.config import EngineConfig
from forno.errors import EngineError, RequestError
from forno.kernels.cpu import ceilings
from forno.kernels.cpu.buffers import legalize
from forno.kernels.cpu.lower import Limits, lower
from forno.kernels.cpu.pack import PackedWeights
from forno.loader.checkpoint import Checkpoint
from forno.phases import PhaseClock
from forno.program.ceiling import Ceiling
from forno.program.ops import Op
from forno.program.program import Program
from forno.request import Request, Row, StepPlan, StepResult, TokenConstraint, TokenLogprobs
from forno.runner import setup
from forno.runner.admit import check_request, constraint_error, seed_of
from forno.runner.native import native_sampling
from forno.runner.results import DRAW, NO_ERROR, WRONG_DRAFT, draw_error, token_logprobs
from forno.runner.weights import load_weights

NO_MASK = -1
NO_TARGET = -1
_COLUMNS = 9
"""Columns of ``PlanRow`` in executor.hpp."""


class CpuRunner:
    """A ``Runner`` (see ``forno.request``) for ``program`` with packed ``weights``, sized by ``limits``.

    Requests hold at most ``limits.max_positions`` tokens. Raises ``RuntimeError`` if the memory cannot be had.
    """

    def __init__(self, program: Program, weights: PackedWeights, limits: Limits) -> None:
        self.program, self.limits = program, limits
        self.weight_bytes = weights.bytes
        self.executor, self._recorded = lower(program, weights, limits)
        self._rows = np.zeros((limits.max_rows, _COLUMNS), np.int32)
        self._draws = self.executor.draws().view(DRAW)
        self._masks = np.zeros((0, -(-program.vocab_size // 32)), np.uint32)
        self._constraints: dict[int, TokenConstraint] = {}
        self._scored: set[int] = set()
        """Requests that want log-probabilities of generated tokens."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, config: EngineConfig, clock: PhaseClock | None = None) -> CpuRunner:
        """Build the program, pack the weights or read their image, reserve the cache, and run one small step.

        Each is a phase of ``clock``, whose name for the second is "pack" or "image".

        Raises ``ModelError`` for a checkpoint that does not fit its architecture and ``ConfigError`` for options that
        this machine or this model cannot honour.
        """
        clock = clock or PhaseClock()
        with clock.phase("program"):
            program = setup.build(checkpoint, config)
            threads = setup.choose_threads(config.cpu.threads)
            isa = setup.choose_isa(config.cpu.isa)
        weights = load_weights(program, checkpoint, config.model.packed_image, threads, clock)
        with clock.phase("cache"):
            limits = setup.choose_limits(program, config, threads, isa)
            runner = cls(program, weights, limits)
        with clock.phase("warm"):
            runner.warm()
        return runner

    @property
    def num_blocks(self) -> int:
        return self.limits.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.limits.block_size

    @property
    def max_model_len(self) -> int:
        """Most tokens of one request, prompt and output together."""
        return self.limits.max_positions

    @property
    def isa(self) -> str:
        return str(self.executor.isa)

    @property
    def threads(self) -> int:
        return self.limits.threads

    @property
    def kv_bytes(self) -> int:
        """Memory reserved for the KV cache; pages become resident as blocks are first used, or by ``kv_cache_prefault``."""
        return int(self.executor.kv_bytes)

    def executed(self) -> Program:
        """``program`` as the executor runs it: with the conversions that its kernels do not fold."""
        return legalize(self.program)

    def ceiling(self) -> Ceiling:
        """What this machine allows these threads: remembered from before, or measured now, in a quarter of a second."""
        return ceilings.known(self.threads, self.isa)

    def prefault(self, gib: float) -> None:
        """Claim that much of the cache's memory from now on, between steps. Call it once, after everything else of a start:
        meanwhile the system makes the other threads wait for their own memory."""
        self.executor.prefault(min(int(gib * setup.GIB), self.kv_bytes))

    def admit(self, request: Request) -> int:
        """Make ``request`` resident; returns its index. Raises as ``check_request`` does."""
        sampling, vocab_size = request.sampling, self.program.vocab_size
        check_request(request, vocab_size, self.max_model_len)
        capacity = min(len(request.prompt) + sampling.max_tokens, self.max_model_len) + 1
        native = native_sampling(sampling, request.eos_token_ids, seed_of(sampling), vocab_size)
        try:
            slot = int(self.executor.admit(np.array(request.prompt, np.int32), capacity, native))
        except (ValueError, OverflowError) as error:
            raise RequestError(str(error)) from error
        if request.constraint is not None:
            self._constraints[slot] = request.constraint
        if sampling.logprobs is not None:
            self._scored.add(slot)
        return slot

    def release(self, index: int) -> None:
        """Forget a request. Raises ``ValueError`` if it is not resident."""
        self.executor.release(index)
        self._constraints.pop(index, None)
        self._scored.discard(index)

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step. Raises ``EngineError``, with nothing computed, for a plan that does not fit."""
        started = time.perf_counter()
        errors: dict[int, Exception] = {}
        try:
            count, mask_seconds = self._run(plan, errors)
        except (ValueError, OverflowError) as error:
            raise EngineError(f"the step's plan does not fit: {error}") from error
        tokens, logprobs, prompt_logprobs = self._collect(plan, self._draws[:count], errors)
        seconds = time.perf_counter() - started
        cpu_seconds = self.threads * seconds - self.executor.missing_seconds
        shared_keys = self.executor.shared_keys
        return StepResult(tokens, logprobs, prompt_logprobs, errors, seconds, mask_seconds, cpu_seconds, shared_keys)

    def _run(self, plan: StepPlan, errors: dict[int, Exception]) -> tuple[int, float]:
        """Hand ``plan`` to the executor as arrays; returns the number of draws, and the seconds that masks took."""
        started = time.perf_counter()
        masks = self._fill_masks(plan, errors) if self._constraints else {}
        mask_seconds = time.perf_counter() - started if self._constraints else 0.0
        entries: list[tuple[int, ...]] = []
        blocks: list[int] = []
        drafts: list[int] = []
        for i, row in enumerate(plan.rows):
            sample = row.sample and i not in errors
            mask = masks.get(i, NO_MASK)
            at = (len(blocks), len(row.blocks), mask, len(drafts), len(row.drafts))
            entries.append((row.request, row.start, row.num_tokens, sample, *at))
            blocks += row.blocks
            drafts += row.drafts
        if len(entries) > len(self._rows):
            raise ValueError(f"{len(entries)} rows exceed the limit of {len(self._rows)}")
        if entries:
            self._rows[: len(entries)] = entries
        copies = np.array(plan.copies, np.int32).reshape(-1, 2)
        table = np.array(blocks, np.int32)
        guesses = np.array(drafts, np.int32)
        count = self.executor.run(self._rows, len(entries), table, copies, self._masks[: len(masks)], guesses)
        return int(count), mask_seconds

    def _fill_masks(self, plan: StepPlan, errors: dict[int, Exception]) -> dict[int, int]:
        """Ask the constraints of rows that sample for their masks; returns the mask's index by row."""
        asked = [(i, row) for i, row in enumerate(plan.rows) if row.sample and row.request in self._constraints]
        if len(asked) > len(self._masks):
            self._masks = np.zeros((len(asked), self._masks.shape[1]), np.uint32)
        masks: dict[int, int] = {}
        for i, row in asked:
            mask = self._masks[len(masks)]
            mask[:] = 0
            try:
                self._constraints[row.request].fill_mask(mask)
                masks[i] = len(masks)
            except Exception as error:  # a grammar may fail in any way; it fails its own request only
                errors[i] = constraint_error(error)
        return masks

    def _collect(
        self, plan: StepPlan, draws: np.ndarray, errors: dict[int, Exception]
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[TokenLogprobs, ...], ...], dict[int, tuple[TokenLogprobs, ...]]]:
        """Sort the draws by row: sampled tokens, their scores, and scores of prompt tokens."""
        tokens: list[tuple[int, ...]] = [()] * len(plan.rows)
        scored: dict[int, tuple[TokenLogprobs, ...]] = {}
        prompt: dict[int, list[TokenLogprobs]] = {}
        columns = (draws[name].tolist() for name in ("row", "target", "token", "error"))
        for i, (index, target, token, code) in enumerate(zip(*columns, strict=True)):
            row = plan.rows[index]
            if code == WRONG_DRAFT:
                continue
            if code != NO_ERROR:
                errors[index] = draw_error(code)
            elif target != NO_TARGET:
                prompt.setdefault(index, []).append(token_logprobs(draws[i]))
            elif self._accept(row, index, token, errors):
                tokens[index] += (token,)
                if row.request in self._scored:
                    scored[index] = (*scored.get(index, ()), token_logprobs(draws[i]))
        logprobs = tuple(scored.get(i, ()) for i in range(len(plan.rows))) if scored else ()
        return tuple(tokens), logprobs, {i: tuple(p) for i, p in prompt.items()}

    def _accept(self, row: Row, index: int, token: int, errors: dict[int, Exception]) -> bool:
        """Advance the row's constraint, if it has one, by the sampled token."""
        if row.request not in self._constraints:
            return True
        try:
            self._constraints[row.request].accept(token)
        except Exception as error:  # as in _fill_masks
            errors[index] = constraint_error(error)
            return False
        return True

    def warm(self) -> None:
        """Run one small step, so that the first request finds threads, code and tables in place."""
        slot = self.admit(Request("warm-up", (0,)))
        try:
            self.run(StepPlan((Row(slot, 0, 1, (0,), True),)))
        finally:
            self.release(slot)

    @contextmanager
    def timed_ops(self) -> Iterator[None]:
        """Within the context, each step records how long every op took; read it with ``op_times``."""
        self.executor.time_ops(True)
        try:
            yield
        finally:
            self.executor.time_ops(False)

    @contextmanager
    def counted_ops(self, stepping: bool = True, only: range | None = None) -> Iterator[None]:
        """Within the context, each step counts the instructions of every op, or of the ``only`` ones by place among those
        of ``op_counts``, which reads them; up to 20 microseconds each. Exact with one thread.

        Without ``stepping`` the executor marks the ops for a tool that counts. Raises ``RuntimeError`` in the step where
        instructions cannot be counted (``_native.CAN_STEP``).
        """
        chosen = only or range(len(self._recorded))
        self.executor.count_ops(True, stepping, chosen.start, chosen.stop)
        try:
            yield
        finally:
            self.executor.count_ops(False)

    def op_counts(self) -> list[tuple[Op, int]]:
        """Each recorded op and its instructions in the last counted step."""
        return list(zip(self._recorded, self.executor.op_instructions(), strict=True))

    def op_times(self) -> list[tuple[Op, float]]:
        """Each recorded op and its seconds in the last timed step."""
        return [(op, ns * 1e-9) for op, ns in zip(self._recorded, self.executor.op_nanoseconds(), strict=True)]
