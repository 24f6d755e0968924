"""``ReferenceRunner``: steps on the numpy executor. Slow and plain; what other runners are held against."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from forno.errors import ConstraintError, NumericsError
from forno.kernels.reference.executor import ReferenceExecutor
from forno.kernels.reference.sampling import SamplingContext, logprobs, sample
from forno.program.batch import OUTPUT_SLOT, POSITION, ROW, TARGET
from forno.program.program import Program
from forno.request import Request, StepPlan, StepResult, TokenLogprobs
from forno.runner.admit import check_request, constraint_error
from forno.runner.batch import SAMPLE, Resident, build_batch


class ReferenceRunner:
    """A ``Runner`` (see ``forno.request``) for ``program`` with float32 ``weights``."""

    def __init__(self, program: Program, weights: Mapping[str, np.ndarray], num_blocks: int, block_size: int) -> None:
        self.program, self.num_blocks, self.block_size = program, num_blocks, block_size
        self.executor = ReferenceExecutor(program, weights, num_blocks, block_size)
        self.residents: dict[int, Resident] = {}

    @property
    def max_model_len(self) -> int:
        """Most tokens of one request: what the model was made for, or what the cache holds."""
        return min(self.program.max_positions, self.num_blocks * self.block_size)

    def admit(self, request: Request) -> int:
        """Raises as ``check_request`` does."""
        check_request(request, self.program.vocab_size, self.max_model_len)
        index = next(i for i in itertools.count() if i not in self.residents)
        self.residents[index] = Resident.of(request)
        return index

    def release(self, index: int) -> None:
        del self.residents[index]

    def run(self, plan: StepPlan) -> StepResult:
        started = time.perf_counter()
        batch = build_batch(plan, self.residents)
        self.executor.copy_blocks(plan.copies)
        logits = self.executor.run(batch)["logits"]
        step = _Outcome(len(plan.rows))
        rows = batch.row_spans[batch.outputs[:, ROW]].tolist()
        for row, output, scores in zip(rows, batch.outputs.tolist(), logits, strict=True):
            resident, target = self.residents[output[OUTPUT_SLOT]], output[TARGET]
            try:
                if target == SAMPLE:
                    if resident.tokens[output[POSITION] :] == [batch.token_ids[output[ROW]]]:  # else a draft was wrong
                        step.sampled(row, *self._sample(resident, scores))
                else:
                    step.scored(row, _logprobs(scores, target, resident.request.sampling.prompt_logprobs or 0))
            except (NumericsError, ConstraintError) as error:
                if not step.tokens[row]:  # after a draft that was right, the next step comes to it again
                    step.errors[row] = error
        return step.result(time.perf_counter() - started)

    def _sample(self, resident: Resident, logits: np.ndarray) -> tuple[int, TokenLogprobs | None]:
        """Draw the next token of ``resident`` and append it."""
        request, mask = resident.request, None
        if request.constraint is not None:
            mask = np.zeros(-(-len(logits) // 32), np.uint32)
            _ask(request.constraint.fill_mask, mask)
        context = SamplingContext(request.prompt, resident.generated, resident.seed, request.eos_token_ids, mask)
        token = sample(logits, request.sampling, context)
        if request.constraint is not None:
            _ask(request.constraint.accept, token)
        resident.tokens.append(token)
        wanted = request.sampling.logprobs
        return token, None if wanted is None else logprobs(logits, token, wanted)


def _ask(method: Callable[[Any], None], argument: Any) -> None:
    """Call a constraint, which may fail in any way."""
    try:
        method(argument)
    except Exception as error:
        raise constraint_error(error) from error


def _logprobs(logits: np.ndarray, token: int, count: int) -> TokenLogprobs:
    if not np.isfinite(logits).all():
        raise NumericsError("the logits contain NaN or infinity")
    return logprobs(logits, token, count)


class _Outcome:
    """Collects what a step yields, per row of its plan."""

    def __init__(self, rows: int) -> None:
        self.tokens: list[tuple[int, ...]] = [()] * rows
        self.logprobs: list[tuple[TokenLogprobs, ...]] = [()] * rows
        self.prompt: dict[int, tuple[TokenLogprobs, ...]] = {}
        self.errors: dict[int, Exception] = {}

    def sampled(self, row: int, token: int, scored: TokenLogprobs | None) -> None:
        self.tokens[row] += (token,)
        if scored is not None:
            self.logprobs[row] += (scored,)

    def scored(self, row: int, scored: TokenLogprobs) -> None:
        self.prompt[row] = (*self.prompt.get(row, ()), scored)

    def result(self, seconds: float) -> StepResult:
        asked = tuple(self.logprobs) if any(self.logprobs) else ()
        return StepResult(tuple(self.tokens), asked, self.prompt, self.errors, seconds)
