"""Sentences and curves of distributions."""

from __future__ import annotations

from forno.bench.report.latency import cdf_figure, headline
from forno.bench.report.series import loads_of
from tests.bench.simulate import closed, result


def test_what_a_distribution_says() -> None:
    run = closed(4)
    assert run.summary.ttft_ms is not None
    run.summary.ttft_ms.p50, run.summary.ttft_ms.p99 = 20.0, 45.0
    other = closed(1)
    assert other.summary.ttft_ms is not None
    other.summary.ttft_ms.p99 = 10.0
    one, both = loads_of([result([run])], [""]), loads_of([result([run, other])], [""])
    assert headline("ttft", one, None) == "half within 20 ms, 99 % within 45 ms"
    assert headline("ttft", one, 1e6).endswith("; 100 % within the limit")
    assert headline("ttft", both, 0.001).endswith("; 0 % within the limit")
    assert headline("ttft", both, None) == "99 % within 10 ms at 1 client, 45 ms at 4 clients"


def test_what_was_not_measured_has_no_curve() -> None:
    run = closed(2, count=4)
    for r in run.requests:
        r.queue_seconds = None
    run.summary.queue_ms = None
    some = loads_of([result([run])], [""])
    assert cdf_figure("queue", some, None, "q") == ""
    assert headline("queue", some, None) == "not measured"


def test_a_limit_is_marked() -> None:
    some = loads_of([result([closed(2, count=6)])], [""])
    assert "SLO 123 ms" in cdf_figure("ttft", some, 123.0, "c")
    assert "SLO" not in cdf_figure("ttft", some, None, "c")
