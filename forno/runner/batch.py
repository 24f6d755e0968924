"""From a ``StepPlan`` to a ``Batch``: looks up the tokens that a plan only counts. Knows no backend and no sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forno.program.batch import Batch
from forno.request import Request, Row, StepPlan
from forno.runner.admit import seed_of

SAMPLE = -1
"""``Batch.outputs`` target of a row whose next token is to be sampled."""


@dataclass(slots=True)
class Resident:
    """A request as the runner holds it: its tokens grow as they are sampled."""

    request: Request
    tokens: list[int]
    """Prompt, then what was generated."""
    seed: int
    """The request's own, or one drawn at admission."""

    @classmethod
    def of(cls, request: Request) -> Resident:
        return cls(request, list(request.prompt), seed_of(request.sampling))

    @property
    def generated(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]


def build_batch(plan: StepPlan, residents: Mapping[int, Resident]) -> Batch:
    """The arrays of one step. Rows come in the plan's order; a row's outputs are its known targets (prompt
    log-probabilities), by position, then the positions to sample: the last known token's, if any, and each draft's."""
    tokens: list[int] = []
    positions: list[np.ndarray] = []
    spans: list[tuple[int, int, int, int]] = []
    blocks: list[int] = []
    offsets = [0]
    outputs: list[tuple[int, int, int, int]] = []
    for row in plan.rows:
        resident, row0, end = residents[row.request], len(tokens), row.start + row.num_tokens
        assert row.num_tokens > 0, f"{row} computes nothing"
        held = [*resident.tokens, *row.drafts]
        assert end <= len(held), f"{row} reaches beyond the request's {len(resident.tokens)} tokens"
        assert end == len(held) or not row.drafts, f"{row} leaves tokens out before or among its drafts"
        spans.append((row.request, row.start, row.num_tokens, row0))
        tokens += held[row.start : end]
        positions.append(np.arange(row.start, end, dtype=np.int32))
        blocks += row.blocks
        offsets.append(len(blocks))
        outputs += _outputs(row, row0, resident.request)
    return Batch(
        token_ids=np.array(tokens, np.int32),
        positions=np.concatenate([*positions, np.empty(0, np.int32)]),
        spans=np.array(spans, np.int32).reshape(-1, 4),
        blocks=np.array(blocks, np.int32),
        block_offsets=np.array(offsets, np.int32),
        outputs=np.array(outputs, np.int32).reshape(-1, 4),
    )


def _outputs(row: Row, row0: int, request: Request) -> list[tuple[int, int, int, int]]:
    """(row, slot, position, target) of each position of ``row`` whose logits are needed."""
    end = row.start + row.num_tokens
    needed = []
    if request.sampling.prompt_logprobs is not None:
        scored = range(row.start, min(end, len(request.prompt) - 1))
        needed = [(row0 + p - row.start, row.request, p, request.prompt[p + 1]) for p in scored]
    if row.sample:
        sampled = range(end - 1 - len(row.drafts), end)
        needed += [(row0 + p - row.start, row.request, p, SAMPLE) for p in sampled]
    return needed
