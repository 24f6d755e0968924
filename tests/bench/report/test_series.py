"""Lines have short names, and colours that tell loads or results apart."""

from __future__ import annotations

from math import isnan

import pytest

from forno.bench.records import Result
from forno.bench.report.series import loads_of, spread, unit
from tests.bench.simulate import closed, opened, result


@pytest.fixture(scope="module")
def sweep() -> Result:
    return result([closed(c, r, count=4) for r in range(2) for c in (4, 1)])


def test_one_result_has_a_colour_per_load(sweep: Result) -> None:
    found = loads_of([sweep], [""])
    assert [(load.label, load.name, len(load.runs)) for load in found] == [("4 clients",) * 2 + (2,), ("1 client",) * 2 + (2,)]
    assert len({load.color for load in found}) == 2
    assert unit(found) == "clients"


def test_several_results_have_a_colour_each(sweep: Result) -> None:
    found = loads_of([sweep, sweep], ["x", "y"])
    assert [load.name for load in found] == ["4 clients – x", "1 client – x", "4 clients – y", "1 client – y"]
    assert found[0].color == found[1].color != found[2].color
    many = loads_of([sweep] * 9, [str(i) for i in range(9)])
    assert len({(load.color, load.dash) for load in many}) == 9


def test_kinds_are_named_where_they_differ() -> None:
    found = loads_of([result([closed(1, count=2), opened([(5, 1)])])], [""])
    assert [load.label for load in found] == ["closed, 1 client", "poisson, 5 requests/s"]
    assert unit(found) == "requests/s"


def test_values_over_repeats(sweep: Result) -> None:
    load = loads_of([sweep], [""])[0]
    found = load.latency("e2e", "p50")
    assert found is not None
    least, most = load.span(lambda summary: summary.e2e_ms.p50 if summary.e2e_ms else None) or (0, 0)
    assert least < found[0] < most
    assert found[1] > 0
    assert load.over_repeats(lambda summary: None) is None
    single = loads_of([result([closed(1, count=2)])], [""])[0]
    assert isnan((single.latency("e2e", "p50") or (0, 0))[1])
    assert single.span(lambda summary: 1.0) is None


def test_a_figure_has_at_most_so_many_lines() -> None:
    loads = loads_of([result([closed(c, count=1) for c in range(1, 21)])], [""])
    assert [load.value for load in spread(loads, 4)] == [1, 7, 14, 20]
    assert spread(loads[:3], 4) == loads[:3]
