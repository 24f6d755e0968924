"""What a timeline says of a run."""

from __future__ import annotations

import pytest

from forno.bench.records import LoadSample, RequestRecord, Run
from forno.bench.report.timeline import MOST_POINTS, headline, in_flight, thinned, timeline_figure
from tests.bench.simulate import closed, opened


def request(sent: float, ended: float) -> RequestRecord:
    return RequestRecord(index=0, scheduled=sent, sent=sent, ended=ended)


def test_requests_in_flight() -> None:
    times, counts = in_flight([request(1, 3), request(2, 5), request(3, 4)])
    assert list(zip(times, counts, strict=True)) == [(0, 0), (1, 1), (2, 2), (3, 2), (4, 1), (5, 0)]
    assert in_flight([request(1, 1)])[1] == [0, 0]


def test_a_long_line_keeps_its_peaks() -> None:
    times = [float(i) for i in range(10_000)]
    values = [1.0] * 10_000
    values[7777] = 99.0
    short_times, short_values = thinned(times, values)
    assert len(short_times) <= MOST_POINTS
    assert short_values[short_times.index(7777.0)] == 99
    assert thinned([1.0], [2.0]) == ([1.0], [2.0])


def run_of(waiting: list[tuple[float, float | None]]) -> Run:
    run = opened([(5, 2), (20, 2), (5, 2)])
    run.samples = [LoadSample(time=t, in_flight=1, running=1, waiting=w) for t, w in waiting]
    return run


@pytest.mark.parametrize(
    ("waiting", "told"),
    [
        ([(1, 0), (3, 9), (4.5, 5), (5.5, 0)], "let up to 9 wait; the queue of the surge took 1.5 s to empty"),
        ([(1, 0), (3, 9), (4.5, 0)], "; no queue outlasted the surge"),
        ([(1, 0), (3, 9), (4.5, 5), (5.5, 2)], "; the queue of the surge was not empty before the end"),
        ([(1, None), (5, None)], "in flight"),
    ],
)
def test_what_a_surge_left(waiting: list[tuple[float, float | None]], told: str) -> None:
    assert headline(run_of(waiting)).endswith(told)


def test_a_steady_load_has_no_surge() -> None:
    run = closed(3, count=6)
    assert headline(run) == "At most 3 requests in flight; the server ran up to 3 and let up to 0 wait"


def test_without_anything_there_is_no_figure() -> None:
    run = closed(1, count=1)
    run.requests, run.samples = [], []
    assert timeline_figure(run, "t") == ""
