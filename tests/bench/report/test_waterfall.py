"""Bars of requests: their parts, and which requests are shown."""

from __future__ import annotations

from forno.bench.records import RequestRecord, Run
from forno.bench.report.waterfall import DECODE, MOST, PREFILL, QUEUED, headline, parts, shown_requests, waterfall_figure
from tests.bench.simulate import closed, opened


def request(**changes: float | None) -> RequestRecord:
    whole = {"sent": 1.0, "first": 2.0, "last": 4.0, "ended": 4.5, "queue_seconds": 0.25}
    return RequestRecord(index=0, scheduled=1.0, **{**whole, **changes})  # type: ignore[arg-type]


def test_parts_of_a_bar() -> None:
    assert parts(request()) == [(1, 0.25, QUEUED), (1.25, 0.75, PREFILL), (2, 2, DECODE)]
    assert parts(request(queue_seconds=None)) == [(1, 1, PREFILL), (2, 2, DECODE)]
    assert parts(request(first=None, last=None, queue_seconds=9)) == [(1, 3.5, QUEUED)]
    assert parts(request(first=None, last=None, ended=0.0)) == []


def run_of(requests: list[RequestRecord]) -> Run:
    run = closed(1, count=1)
    run.requests = requests
    return run


def test_the_slowest_and_its_neighbours_are_shown() -> None:
    run = opened([(50, 5)])
    slow = run.requests[100]
    assert slow.first is not None
    slow.first += 50
    found = shown_requests(run)
    assert len(found) == MOST
    assert slow in found
    assert [r.sent for r in found] == sorted(r.sent for r in found)
    assert headline(run).startswith(f"The {MOST} requests around the slowest first token: the slowest waited 52,")


def test_few_requests_are_all_shown_but_those_that_were_called_off() -> None:
    run = closed(2, count=5)
    run.requests[4].error = run.requests[4].error_kind = "cancelled"
    assert len(shown_requests(run)) == 4
    assert headline(run).startswith("All 4 requests: the slowest waited")


def test_nothing_answered_and_nothing_sent() -> None:
    assert headline(run_of([request(first=None, last=None)])) == "The only request: none was answered"
    assert waterfall_figure(run_of([]), "w") == ""
