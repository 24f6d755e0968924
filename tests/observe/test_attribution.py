"""Totals over steps: all time has a label, batches do not matter, and drift follows what the steps take."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forno.observe.attribution import BATCH, RESIDUALS, Attribution
from forno.observe.record import StepRecord
from tests.helpers.steps import step_record
from tests.observe.test_roofline import DECODE, ROOFLINE

(PREDICTED,) = ROOFLINE.predict([[s for s, _ in DECODE]], [[t for _, t in DECODE]], [len(DECODE)])


class Source:
    """A recorder: the steps it holds."""

    def __init__(self, steps: Sequence[StepRecord] = ()) -> None:
        self.held = list(steps)

    def __call__(self, since: int) -> list[StepRecord]:
        return [step for step in self.held if step.number > since]


def run_of(count: int, seconds: float = 0.01, gap: float = 0.0, **options: float) -> list[StepRecord]:
    """Steps one after the other, ``gap`` apart."""
    return [step_record(DECODE, number=i + 1, start=i * (seconds + gap), seconds=seconds, **options) for i in range(count)]


@given(st.lists(st.tuples(st.floats(0, 0.1), st.floats(1e-4, 0.1), st.floats(0, 0.3), st.floats(-0.2, 0.2)), min_size=1))
def test_labels_sum_to_all_time_since_the_first_step(steps: list[tuple[float, float, float, float]]) -> None:
    now, records = 5.0, []
    for i, (gap, seconds, cpu, arrived) in enumerate(steps):
        now += gap
        records.append(step_record(DECODE, number=i + 1, start=now, seconds=seconds, cpu=cpu, arrival=now + min(arrived, 0.0)))
        now = records[-1].end
    totals = Attribution(ROOFLINE, Source(records)).advance()
    assert sum(totals.seconds.values()) == pytest.approx(now - records[0].start, rel=1e-9)
    assert min(totals.seconds.values()) >= 0
    assert sum(totals.steps.values()) == sum(totals.residuals) == len(steps)


def test_feeding_by_and_by_is_feeding_at_once() -> None:
    steps = run_of(BATCH + 40, gap=0.001)
    at_once = Attribution(ROOFLINE, Source(steps)).advance()
    source = Source()
    attribution = Attribution(ROOFLINE, source)
    for end in (1, 7, 7, 150, len(steps)):
        source.held = steps[:end]
        by_and_by = attribution.advance()
    assert by_and_by.seconds == pytest.approx(at_once.seconds)
    assert by_and_by.residuals == at_once.residuals
    assert by_and_by.drift == pytest.approx(at_once.drift)
    assert by_and_by.bytes == pytest.approx(at_once.bytes)
    assert attribution.missed == 0


def test_a_gap_is_idle_until_a_request_comes() -> None:
    first = step_record(DECODE, number=1, start=1.0, seconds=0.5)
    later = step_record(DECODE, number=2, start=4.0, seconds=0.5, arrival=3.75)
    assert Attribution(ROOFLINE, Source([first, later])).advance().seconds["idle"] == pytest.approx(2.25)
    there = step_record(DECODE, number=2, start=4.0, seconds=0.5, arrival=1.2)
    assert Attribution(ROOFLINE, Source([first, there])).advance().seconds["idle"] == 0


def test_steps_that_were_forgotten_are_counted() -> None:
    source = Source(run_of(5))
    attribution = Attribution(ROOFLINE, source)
    attribution.advance()
    source.held = run_of(30)[20:]
    totals = attribution.advance()
    assert attribution.missed == 15
    assert sum(totals.seconds.values()) == pytest.approx(15 * 0.01), "nothing is said of the time that was missed"


def test_residuals_are_counted_by_size() -> None:
    totals = Attribution(ROOFLINE, Source(run_of(3, seconds=1.02 * PREDICTED))).advance()
    assert totals.residuals[RESIDUALS.index(1.05)] == 3
    assert totals.residual_sum == pytest.approx(3.06)
    assert totals.measured / totals.predicted == pytest.approx(1.02)


def test_drift_follows_the_steps_and_forgets() -> None:
    normal = run_of(2000, seconds=PREDICTED)
    slow = run_of(4000, seconds=1.5 * PREDICTED)[2000:]
    source = Source(normal)
    attribution = Attribution(ROOFLINE, source)
    assert attribution.advance().drift == pytest.approx(1.0)
    source.held = slow[:256]
    between = attribution.advance().drift
    assert 1.2 < between < 1.4
    source.held = slow
    assert attribution.advance().drift == pytest.approx(1.5, rel=1e-2)


def test_starved_steps_say_nothing_about_drift() -> None:
    starved = run_of(10, seconds=3 * PREDICTED, cpu=4 * PREDICTED)  # two threads: a third of the time is missing
    totals = Attribution(ROOFLINE, Source(starved)).advance()
    assert totals.drift == 1.0
    assert totals.residual_sum == pytest.approx(30.0)
    assert not math.isnan(totals.share)


def test_nothing_was_computed_yet() -> None:
    totals = Attribution(ROOFLINE, Source()).advance()
    assert totals.share == 0
    assert set(totals.seconds.values()) == {0.0}
