"""A step in the making: what is left of its budget, and what kept the first in line out of it."""

from __future__ import annotations

import pytest

from forno.cache import KvCache
from forno.observe.record import Shortage
from forno.request import Request, SamplingParams
from forno.scheduler.sequence import Sequence
from forno.scheduler.step import Step


def sequence(serial: int = 1) -> Sequence:
    table = KvCache(8, 4).open()
    return Sequence(Request(str(serial), (1, 2, 3), SamplingParams(max_tokens=4)), serial, (0, 0.0, serial), table)


def test_whoever_loses_its_blocks_gives_its_tokens_back() -> None:
    step, one = Step(10, 2), sequence()
    step.add(one, 4)
    assert step.budget == 6
    step.drop(one)
    assert (step.budget, step.tokens, step.barrier) == (10, {}, one.rank)


@pytest.mark.parametrize(
    ("budget", "seats", "parked", "starved", "lacking"),
    [
        (5, 0, False, False, Shortage.BATCH),
        (0, 1, False, False, Shortage.TOKENS),
        (0, 0, False, True, Shortage.BATCH),
        (5, 1, False, True, Shortage.BLOCKS),
        (5, 1, False, False, Shortage.PREFIX),
        (0, 0, True, True, Shortage.PREFIX),
    ],
)
def test_what_the_first_in_line_lacks(budget: int, seats: int, parked: bool, starved: bool, lacking: Shortage) -> None:
    """Who was looked at and did not fit says so itself; of others, what the step has none of, the dearest first."""
    step = Step(budget, seats)
    if starved:
        step.starve(sequence())
    first = None if parked else sequence(2)
    assert step.lacking(first, Shortage.BATCH) is lacking
    step.shortage = Shortage.TOKENS
    assert step.lacking(first, Shortage.BATCH) is Shortage.TOKENS
