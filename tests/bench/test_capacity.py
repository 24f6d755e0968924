"""The search for capacity, on servers that are functions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.bench.capacity import PATIENCE, Capacity, Search, Verdict, find, interval


def search(
    share_at: Callable[[float], float], wanted: Search, total: int = 1000, fault: Callable[[float], str] = lambda v: ""
) -> Capacity:
    """Search a server at which ``share_at(load)`` of the requests meet the SLO."""

    async def measure(value: float) -> Verdict:
        return Verdict(round(total * share_at(value)), total, fault(value))

    return asyncio.run(find(measure, wanted))


def knee(capacity: float) -> Callable[[float], float]:
    return lambda value: 1.0 if value <= capacity else 0.5


def test_growth_then_bisection() -> None:
    found = search(knee(11.0), Search(1.0))
    assert [probe.value for probe in found.probes[:5]] == [1, 2, 4, 8, 16]
    assert found.value is not None
    assert found.upper is not None
    assert found.value <= 11.0 < found.upper <= found.value * 1.1
    up_to, fails_at = f"{found.value:.4g} requests/s", f"{found.upper:.4g}"
    assert found.said == f"the SLO is met for 95 % of requests up to {up_to}; at {fails_at} it is not: met for 50 %"


@settings(max_examples=100, deadline=None)
@given(st.floats(0.02, 4000), st.floats(0.02, 4000), st.floats(0.01, 0.5))
def test_any_capacity_is_found_within_the_tolerance(capacity: float, start: float, tolerance: float) -> None:
    found = search(knee(capacity), Search(start, tolerance=tolerance))
    assert found.value is not None
    assert found.upper is not None
    assert found.value <= capacity < found.upper <= found.value * (1 + tolerance) * 1.000001
    assert len(found.probes) < 40


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4000), st.integers(1, 4000))
def test_clients_are_whole_numbers(capacity: int, start: int) -> None:
    found = search(knee(capacity), Search(start, whole=True, lowest=1, tolerance=0.01))
    assert all(probe.value == int(probe.value) for probe in found.probes)
    assert found.value is not None
    assert found.upper is not None
    assert found.value <= capacity < found.upper
    assert found.upper - found.value <= max(1, 0.01 * found.value)


def test_a_lowest_load_that_fails_is_said_plainly() -> None:
    found = search(lambda value: 0.1, Search(1.0, lowest=0.25))
    assert [probe.value for probe in found.probes] == [1, 0.5, 0.25]
    assert found.value is None
    assert (
        found.said
        == "no load meets the SLO for 95 % of requests: at the lowest tried, 0.25 requests/s, 10 % of 1000 requests met it"
    )


def test_a_server_that_takes_everything() -> None:
    found = search(lambda value: 1.0, Search(1.0, highest=20))
    assert [probe.value for probe in found.probes] == [1, 2, 4, 8, 16, 20]
    assert found.said == "the SLO is met for 95 % of requests up to the highest load tried, 20 requests/s"


def test_a_client_at_its_end_is_the_reason() -> None:
    found = search(lambda value: 1.0, Search(1.0), fault=lambda v: "the client was the bottleneck" if v > 5 else "")
    assert found.value is not None
    assert found.value <= 5
    assert found.said.endswith("it is not: the client was the bottleneck")


def test_what_is_too_close_to_call_is_measured_again() -> None:
    found = search(lambda value: 0.95 if value == 4 else knee(4)(value), Search(4.0, tolerance=1.0), total=40)
    assert found.probes[0].measurements == PATIENCE
    assert (found.probes[0].total, found.probes[0].passed, found.probes[0].close) == (120, True, True)
    assert found.said.endswith("(too close to call with certainty)")
    assert all(probe.measurements == 1 for probe in found.probes[1:])


def test_sixty_that_all_meet_it_leave_no_doubt() -> None:
    assert interval(60, 60)[0] > 0.95
    assert interval(50, 50)[0] < 0.95
    assert interval(0, 0) == (0, 1)


def test_noise_moves_the_result_little() -> None:
    """A share that falls smoothly, requests that are drawn: the result stays near the load where the share is 95 %."""
    rng = random.Random(7)

    async def measure(value: float) -> Verdict:
        share = 1 / (1 + (value / 20) ** 6)  # 95 % at 12.2
        return Verdict(sum(rng.random() < share for _ in range(100)), 100)

    found = asyncio.run(find(measure, Search(1.0)))
    assert found.value == pytest.approx(12.2, rel=0.2)


def test_for_a_result_file() -> None:
    written = search(knee(3), Search(1.0)).as_dict()
    assert written["probes"][0] == {
        "value": 1.0, "met": 1000, "total": 1000, "measurements": 1, "passed": True, "close": False, "fault": "", "share": 1.0
    }  # fmt: skip
    assert {"value", "upper", "share", "tolerance", "said"} <= written.keys()


@given(st.integers(0, 500), st.integers(0, 500))
def test_an_interval_holds_its_share(a: int, b: int) -> None:
    met, total = min(a, b), max(a, b)
    low, high = interval(met, total)
    assert -1e-12 <= low <= (met / total if total else 0.5) <= high <= 1 + 1e-12
