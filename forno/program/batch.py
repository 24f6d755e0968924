"""``Batch``: the concrete inputs of one step, as arrays. What ``StepShape`` is to costing, this is to computing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forno.program.shape import Span, StepShape

SLOT, START, NUM_TOKENS, ROW0 = range(4)
"""Columns of ``Batch.spans``."""
ROW, OUTPUT_SLOT, POSITION, TARGET = range(4)
"""Columns of ``Batch.outputs``."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step. All arrays are C-contiguous int32."""

    token_ids: np.ndarray
    """``[rows]``."""
    positions: np.ndarray
    """``[rows]``: index of each token in its sequence."""
    spans: np.ndarray
    """``[sequences, 4]``: resident slot, start, number of tokens, first row. Rows of a span are consecutive."""
    blocks: np.ndarray
    """Block tables of all spans, one after the other."""
    block_offsets: np.ndarray
    """``[sequences + 1]``: span ``i`` owns ``blocks[block_offsets[i] : block_offsets[i + 1]]``."""
    outputs: np.ndarray
    """``[outputs, 4]``: row, resident slot, position, and the known next token to score, or -1 to sample one."""

    @property
    def row_spans(self) -> np.ndarray:
        """``[rows]``: index of each row's span."""
        return np.repeat(np.arange(len(self.spans), dtype=np.int32), self.spans[:, NUM_TOKENS])

    def block_table(self, span: int) -> np.ndarray:
        return self.blocks[self.block_offsets[span] : self.block_offsets[span + 1]]

    @property
    def shape(self) -> StepShape:
        """The sizes that costs are a function of."""
        spans = tuple(Span(int(s[START]), int(s[NUM_TOKENS])) for s in self.spans)
        return StepShape(spans, len(self.outputs))

    def check_integrity(self, num_blocks: int, block_size: int) -> None:
        """Rows, spans, blocks and outputs agree with each other; raises AssertionError."""
        rows = len(self.token_ids)
        assert len(self.positions) == rows == self.spans[:, NUM_TOKENS].sum(), "rows and spans disagree"
        first = 0
        for i, (_, start, count, row0) in enumerate(self.spans.tolist()):
            assert (row0, count > 0, start >= 0) == (first, True, True), f"span {i} is {self.spans[i]}"
            assert (self.positions[row0 : row0 + count] == np.arange(start, start + count)).all(), f"positions of span {i}"
            table = self.block_table(i)
            assert len(table) * block_size >= start + count, f"span {i} has too few blocks"
            assert ((table >= 0) & (table < num_blocks)).all(), f"span {i} names a block that does not exist"
            first += count
        assert ((self.outputs[:, ROW] >= 0) & (self.outputs[:, ROW] < rows)).all(), "an output names no row"
