"""Sentences about loads follow from their numbers."""

from __future__ import annotations

from forno.bench.records import Run
from forno.bench.report.load import (
    goodput_figure,
    goodput_headline,
    latency_headline,
    tradeoff_figure,
    tradeoff_headline,
)
from forno.bench.report.series import Load, loads_of
from tests.bench.simulate import closed, result


def loads(tokens: list[float], p99: list[float] | None = None, goodput: list[float] | None = None) -> list[Load]:
    """One load of 1, 2, 4, ... clients per number."""
    runs: list[Run] = []
    for i, rate in enumerate(tokens):
        run = closed(2**i, count=2)
        run.summary.output_tokens_per_s = rate
        if p99:
            assert run.summary.ttft_ms is not None
            run.summary.ttft_ms.p99 = p99[i]
        run.summary.goodput_per_s = goodput[i] if goodput else None
        runs.append(run)
    return loads_of([result(runs)], [""])


def test_throughput() -> None:
    assert (
        tradeoff_headline(loads([10, 20, 40])) == "Throughput still grows at the highest load: 40 output tokens/s at 4 clients"
    )
    assert tradeoff_headline(loads([10, 39, 40])) == "Throughput levels off from 2 clients on, at 40 output tokens/s"
    fallen = "Throughput levels off from 2 clients on, at 40 output tokens/s, and falls to 20 at 4 clients"
    assert tradeoff_headline(loads([10, 40, 20])) == fallen
    assert tradeoff_headline(loads([10])) == "10 output tokens/s at 1 client"


def test_runs_that_are_not_valid_spoil_the_sentence() -> None:
    some = loads([10, 20])
    some[0].runs[0].summary.valid = False
    assert tradeoff_headline(some).startswith("Some loads are NOT VALID. ")
    some[1].runs[0].summary.valid = False
    assert tradeoff_headline(some).startswith("NOT VALID, do not use these numbers. ")


def test_latency_against_a_limit() -> None:
    some = loads([10, 20, 30], [5, 50, 500])
    assert latency_headline("ttft", some, None) == "p99 from 5 ms at 1 client to 500 ms at 4 clients"
    assert latency_headline("ttft", some, 100) == "p99 keeps the SLO up to 2 clients"
    assert latency_headline("ttft", some, 1) == "p99 is over the SLO at every load"
    assert latency_headline("ttft", some, 1000) == "p99 keeps the SLO at every load"
    assert latency_headline("ttft", loads([10, 20, 30], [500, 50, 5]), 100) == "p99 keeps the SLO at 2 of 3 loads"


def test_goodput() -> None:
    assert goodput_headline(loads([1, 1, 1], goodput=[3, 9, 1])) == (
        "Goodput is highest at 2 clients, 9 requests/s; at 4 clients it is 1"
    )
    assert (
        goodput_headline(loads([1, 1], goodput=[3, 9])) == "Goodput still grows at the highest load: 9 requests/s at 2 clients"
    )
    assert goodput_headline(loads([1, 1], goodput=[0, 0])) == "No request met the SLO at any load"


def test_one_load_is_no_curve() -> None:
    assert tradeoff_figure("ttft", loads([10]), None, "t") == ""
    assert goodput_figure(loads([10], goodput=[1]), None, "g") == ""
    assert goodput_figure(loads([10, 20]), None, "g") == ""
