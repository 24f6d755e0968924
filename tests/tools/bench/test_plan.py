"""From options to loads and their extents."""

from __future__ import annotations

import argparse
from math import inf

import pytest

from forno.bench.arrivals import Closed, Open
from forno.bench.load import FAILURES_IN_A_ROW, Extent
from forno.tools.bench.options import add_arguments
from forno.tools.bench.plan import Plan, plan_of


def plan(*words: str) -> Plan:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return plan_of(parser.parse_args(words))


def extents(*words: str) -> list[Extent]:
    made = plan(*words)
    return [made.extent(load) for load in made.loads]


def test_without_options_three_closed_loops() -> None:
    assert plan().loads == (Closed(1), Closed(8), Closed(32))
    assert [(e.requests, e.seconds, e.warmup_requests) for e in extents()] == [(48, inf, 1), (48, inf, 8), (128, inf, 32)]


def test_an_open_loop_is_measured_for_a_time() -> None:
    (extent,) = extents("--rate", "3.2")
    assert (extent.requests, extent.seconds, extent.warmup_requests) == (inf, 30, 7)


def test_steps_are_measured_whole() -> None:
    (extent,) = extents("--steps", "1@2,4@2")
    assert (extent.requests, extent.seconds, extent.warmup_requests) == (inf, inf, 0)


def test_what_is_told_is_done() -> None:
    words = ("--num-prompts", "9", "--duration", "4", "--warmup", "0", "--warmup-seconds", "1.5", "--concurrency", "64")
    assert extents(*words) == [Extent(9, 4, 0, 1.5, 2 * 64)]
    assert extents("--num-prompts", "9", "--concurrency", "2")[0].failures_in_a_row == FAILURES_IN_A_ROW


def test_names_of_other_tools() -> None:
    other = plan("--base-url", "h:1/v1", "--request-rate", "2", "--burstiness", "0.5", "--goodput", "ttft:200", "tpot:50")
    (load,) = other.loads
    assert isinstance(load, Open)
    assert (load.process, load.burstiness, load.value) == ("gamma", 0.5, 2)
    assert (other.target.url, other.settings.slo) == ("http://h:1", {"ttft": 200, "tpot": 50})
    assert plan("--max-concurrency", "3").loads == (Closed(3),)


def test_fields_of_requests() -> None:
    assert plan().target.fields == {"temperature": 0.0, "ignore_eos": True}
    assert plan("--no-ignore-eos", "--extra-body", '{"top_p": 0.5, "temperature": 1}').target.fields == {
        "temperature": 1,
        "top_p": 0.5,
    }


@pytest.mark.parametrize(("words", "key"), [((), "from the environment"), (("--api-key", "mine"), "mine")])
def test_keys(words: tuple[str, ...], key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORNO_API_KEY", "from the environment")
    assert plan(*words).target.api_key == key
