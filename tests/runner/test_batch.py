"""Batches from plans: the tokens, positions and outputs that a plan only counts."""

from __future__ import annotations

import numpy as np
import pytest

from forno.program.shape import Span, StepShape
from forno.request import Request, Row, SamplingParams, StepPlan
from forno.runner.batch import Resident, build_batch


def resident(prompt: tuple[int, ...], generated: tuple[int, ...] = (), **sampling: object) -> Resident:
    held = Resident.of(Request("r", prompt, SamplingParams(**sampling)))  # type: ignore[arg-type]
    held.tokens += generated
    return held


def test_rows_lie_one_after_the_other() -> None:
    residents = {3: resident((10, 11, 12, 13)), 7: resident((20, 21), generated=(22,))}
    plan = StepPlan((Row(7, 2, 1, (5,), True), Row(3, 1, 2, (8, 9), False)))
    batch = build_batch(plan, residents)
    assert batch.token_ids.tolist() == [22, 11, 12]
    assert batch.positions.tolist() == [2, 1, 2]
    assert batch.spans.tolist() == [[7, 2, 1, 0], [3, 1, 2, 1]]
    assert batch.row_spans.tolist() == [0, 1, 1]
    assert [batch.block_table(i).tolist() for i in range(2)] == [[5], [8, 9]]
    assert batch.outputs.tolist() == [[0, 7, 2, -1]]
    assert batch.shape == StepShape((Span(2, 1), Span(1, 2)), 1)
    batch.check_integrity(num_blocks=10, block_size=32)


def test_prompt_logprobs_ask_for_every_known_next_token() -> None:
    residents = {0: resident((5, 6, 7, 8), prompt_logprobs=0)}
    first = build_batch(StepPlan((Row(0, 0, 2, (0,), False),)), residents)
    last = build_batch(StepPlan((Row(0, 2, 2, (0,), True),)), residents)
    assert first.outputs.tolist() == [[0, 0, 0, 6], [1, 0, 1, 7]]
    assert last.outputs.tolist() == [[0, 0, 2, 8], [1, 0, 3, -1]]


def test_arrays_are_what_a_native_kernel_expects() -> None:
    for plan in (StepPlan(()), StepPlan((Row(0, 0, 3, (1,), True),))):
        batch = build_batch(plan, {0: resident((1, 2, 3))})
        arrays = (batch.token_ids, batch.positions, batch.spans, batch.blocks, batch.block_offsets, batch.outputs)
        assert {a.dtype for a in arrays} == {np.dtype(np.int32)}
        assert all(a.flags.c_contiguous for a in arrays)
        assert batch.spans.shape[1] == batch.outputs.shape[1] == 4


def test_a_row_beyond_the_known_tokens_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="beyond the request's 3 tokens"):
        build_batch(StepPlan((Row(0, 0, 4, (1,), True),)), {0: resident((1, 2, 3))})


@pytest.mark.parametrize(
    ("row", "complaint"),
    [(Row(0, 0, 3, (4,), True), "does not exist"), (Row(0, 0, 3, (), True), "too few blocks")],
)
def test_integrity_holds_blocks_against_the_pool(row: Row, complaint: str) -> None:
    batch = build_batch(StepPlan((row,)), {0: resident((1, 2, 3))})
    with pytest.raises(AssertionError, match=complaint):
        batch.check_integrity(num_blocks=4, block_size=32)
