"""Summaries: by numbers worked out by hand, and what holds of any run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.bench.metrics import ClientHealth, distribution, summarize, tokens_within
from forno.bench.records import RequestRecord


def record(sent: float, first: float | None = None, gaps: list[float] | None = None, **more: Any) -> RequestRecord:
    """A request of 100 prompt tokens, a token per chunk."""
    gaps = gaps or []
    last = None if first is None else first + sum(gaps)
    tokens = 0 if first is None else len(gaps) + 1
    given = {
        "scheduled": sent,
        "output_tokens": tokens,
        "prompt_tokens": 100,
        "ended": last or sent,
        "tells_cached": True,
    } | more
    return RequestRecord(index=0, sent=sent, first=first, last=last, gaps=gaps, **given)


A = record(0.0, 0.1, [0.1, 0.1, 0.2], cached_tokens=50)
"""TTFT 100 ms, E2E 500, TPOT 400 / 3, ITL 100, 100, 200."""
B = record(0.5, 0.8, [0.1], scheduled=0.49, queue_seconds=0.2)
"""TTFT 300 ms, E2E 400, TPOT 100, ITL 100; sent 10 ms late."""
WINDOW = (0.0, 1.0)


def test_latencies() -> None:
    s = summarize([A, B], WINDOW, {})
    assert s.ttft_ms
    assert s.e2e_ms
    assert s.tpot_ms
    assert s.itl_ms
    assert s.queue_ms
    assert s.client_lag_ms
    assert (s.ttft_ms.mean, s.ttft_ms.min, s.ttft_ms.max, s.ttft_ms.count) == (
        pytest.approx(200),
        pytest.approx(100),
        pytest.approx(300),
        2,
    )
    assert (s.ttft_ms.p50, s.ttft_ms.p90, s.ttft_ms.std) == (pytest.approx(200), pytest.approx(280), pytest.approx(100))
    assert (s.e2e_ms.p50, s.tpot_ms.max) == (pytest.approx(450), pytest.approx(400 / 3))
    assert (s.itl_ms.count, s.itl_ms.mean, s.itl_ms.p50) == (4, pytest.approx(125), pytest.approx(100))
    assert (s.queue_ms.count, s.queue_ms.max, s.client_lag_ms.max) == (1, pytest.approx(200), pytest.approx(10))
    assert (s.completed, s.failed, s.errors, s.prompt_tokens, s.output_tokens) == (2, 0, {}, 200, 6)
    assert s.cached_share == pytest.approx(0.25)
    assert (s.valid, s.problems) == (True, [])


def test_rates() -> None:
    """Six tokens came in a second, three for each request; and 100 tokens of prompt for every three."""
    s = summarize([A, B], WINDOW, {"ttft": 200})
    assert (s.output_tokens_per_s, s.requests_per_s) == (pytest.approx(6), pytest.approx(2))
    assert s.total_tokens_per_s == pytest.approx(206)
    assert (s.goodput_per_s, s.goodput_share) == (pytest.approx(1), 0.5)


def test_a_request_that_began_before_the_window_gives_the_tokens_that_came_within() -> None:
    """Eight clients in step, each answer 1 s long: whole requests that end in a window of 2.5 s would be 16 or 24."""
    starts = [start for start in range(-2, 5) for _ in range(8)]
    records = [record(float(t), t + 0.05, [0.1] * 9, counted=0 <= t <= 1) for t in starts]
    s = summarize(records, (0.0, 2.5), {})
    assert (s.output_tokens_per_s, s.requests_per_s) == (pytest.approx(80), pytest.approx(8))
    assert s.completed == 16


def test_tokens_of_chunks() -> None:
    uneven = record(0.0, 0.5, [1.0, 1.0], chunk_tokens=[1, 2, 5], output_tokens=8)
    assert [tokens_within(uneven, 0, end) for end in (0.4, 0.5, 1.6, 9)] == [
        0,
        pytest.approx(1),
        pytest.approx(3),
        pytest.approx(8),
    ]
    assert tokens_within(record(0.0), 0, 1) == 0


def test_failed_requests() -> None:
    failed = record(0.2, error="500", error_kind="status")
    s = summarize([A, B, failed], WINDOW, {"ttft": 1000})
    assert (s.completed, s.failed, s.errors) == (2, 1, {"status": 1})
    assert s.goodput_share == pytest.approx(2 / 3)
    assert s.goodput_per_s == pytest.approx(2)
    assert s.ttft_ms
    assert s.ttft_ms.count == 2
    assert (s.valid, s.problems) == (True, ["1 request failed (status), such as: 500"])


def test_tokens_of_failed_requests_are_no_answered_requests() -> None:
    """Half of the requests break off just before their end: half are answered and good, not nearly all."""
    good = [record(t, t + 0.1, [0.1] * 9) for t in range(10)]
    broken = [record(t, t + 0.1, [0.1] * 8, error="gone", error_kind="dropped") for t in range(10)]
    s = summarize([*good, *broken], (0.0, 10.0), {"ttft": 1000})
    assert (s.completed, s.failed, s.goodput_share) == (10, 10, 0.5)
    assert s.output_tokens_per_s == pytest.approx(19)
    assert s.requests_per_s == pytest.approx(1)
    assert s.goodput_per_s == pytest.approx(1)


def test_failures_outside_of_the_window_are_told() -> None:
    s = summarize([A, record(0.2, error="x", error_kind="dropped", counted=False)], WINDOW, {})
    assert s.failed == 0
    assert s.problems == [
        "1 request failed (dropped), such as: x",
        "failed outside the measured window: 1 of them",
    ]


def test_cancelled_fillers_are_no_failures() -> None:
    assert summarize([A, record(0.2, error="x", error_kind="cancelled", counted=False)], WINDOW, {}).problems == []


def test_what_does_not_count_is_in_no_latency() -> None:
    warm = record(0.0, 0.9, [], counted=False)
    s = summarize([warm, A], WINDOW, {})
    assert s.ttft_ms
    assert s.ttft_ms.max == pytest.approx(100)
    assert s.output_tokens_per_s == pytest.approx(5)  # but its token was made in the window


@pytest.mark.parametrize("records", [[], [record(0.0, error="x", error_kind="status")], [record(0.0, 0.1, counted=False)]])
def test_nothing_is_never_zero(records: list[RequestRecord]) -> None:
    s = summarize(records, WINDOW, {"ttft": 100})
    assert (s.ttft_ms, s.tpot_ms, s.itl_ms, s.e2e_ms, s.queue_ms, s.cached_share) == (None,) * 6
    assert (s.completed, s.valid, s.problems[0]) == (0, False, "no counted request was answered")


def test_an_empty_window_is_not_valid() -> None:
    assert summarize([A], (1.0, 1.0), {}).problems == ["the measured window is empty"]


def test_one_token_has_no_tpot_to_miss() -> None:
    s = summarize([record(0.0, 0.1)], WINDOW, {"tpot": 1.0})
    assert (s.tpot_ms, s.itl_ms, s.goodput_share) == (None, None, 1.0)


def test_a_server_that_does_not_tell_cached_tokens() -> None:
    assert summarize([record(0.0, 0.1, tells_cached=False)], WINDOW, {}).cached_share is None


@pytest.mark.parametrize(
    ("health", "late", "message"),
    [
        (ClientHealth(), 0.5, "requests were sent up to 500.0 ms late"),
        (ClientHealth(loop_lags=[0.2] * 10), 0.0, "event loop was up to 200.0 ms late"),
        (ClientHealth(cpu_share=0.97), 0.0, "it used 97 % of a core"),
    ],
)
def test_a_client_that_was_the_bottleneck(health: ClientHealth, late: float, message: str) -> None:
    slow = record(1.0, 1.1, scheduled=1.0 - late)
    s = summarize([slow], (0.0, 2.0), {}, health)
    assert not s.valid
    assert message in s.problems[0]
    assert "bottleneck" in s.problems[0]


def test_the_limit_of_lag_is_the_users() -> None:
    slow = record(1.0, 1.1, scheduled=0.95)
    assert not summarize([slow], (0.0, 2.0), {}).valid
    assert summarize([slow], (0.0, 2.0), {}, ClientHealth(max_lag_ms=60)).valid


def test_a_few_late_requests_of_many_are_enough_and_those_that_do_not_count_are_none() -> None:
    on_time, late = [record(0.01 * i, 0.01 * i + 0.1) for i in range(97)], [record(1.0, 1.1, scheduled=0.5)] * 3
    assert not summarize([*on_time, *late], (0.0, 2.0), {}).valid
    assert summarize([*on_time, record(1.0, 1.1, scheduled=0.0, counted=False)], (0.0, 2.0), {}).client_lag_ms.max < 1


TIMES = st.floats(0, 100, allow_subnormal=False)
RECORDS = st.builds(
    lambda sent, wait, gaps, counted, error: record(
        sent, sent + wait, gaps, counted=counted, **({"error": "x", "error_kind": "status"} if error else {})
    ),
    TIMES,
    TIMES,
    st.lists(st.floats(0, 5, allow_subnormal=False), max_size=20),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(RECORDS, max_size=12), TIMES, st.floats(0.01, 500))
def test_what_holds_of_any_run(records: list[RequestRecord], start: float, length: float) -> None:
    s = summarize(records, (start, start + length), {"ttft": 5000, "e2e": 20000})
    counted = [r for r in records if r.counted]
    assert s.completed + s.failed == len(counted)
    assert sum(s.errors.values()) == s.failed
    assert s.valid == (s.completed > 0)
    assert 0 <= s.output_tokens_per_s * length <= sum(r.output_tokens for r in records) + 1e-6
    assert s.goodput_per_s is not None
    assert s.goodput_per_s <= s.requests_per_s + 1e-9
    for found in (s.ttft_ms, s.tpot_ms, s.itl_ms, s.e2e_ms):
        if found is not None:
            assert 0 <= found.min <= found.p50 <= found.p90 <= found.p95 <= found.p99 <= found.max
            assert found.min <= found.mean <= found.max
    halves = (start, start + length / 2), (start + length / 2, start + length)
    parts = sum(tokens_within(r, *half) for r in records for half in halves)
    assert parts >= s.output_tokens_per_s * length - 1e-6  # what comes at the cut is in both


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_a_distribution_is_of_its_values(values: list[float]) -> None:
    found = distribution(values)
    assert found is not None
    assert (found.count, found.min, found.max) == (len(values), min(values), max(values))


def test_no_values_have_no_distribution() -> None:
    assert distribution([]) is None
