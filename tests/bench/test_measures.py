"""Each measure against its definition, worked out by hand."""

from __future__ import annotations

import pytest

from forno.bench import measures
from forno.bench.records import RequestRecord

ANSWERED = RequestRecord(
    index=0,
    scheduled=1.0,
    sent=1.25,
    first=1.5,
    last=2.5,
    ended=2.75,
    gaps=[0.25, 0.75],
    chunk_tokens=[1, 1, 3],
    output_tokens=5,
    queue_seconds=0.125,
)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("ttft", [250]), ("tpot", [250]), ("itl", [250, 250]), ("e2e", [1250]), ("queue", [125]), ("client_lag", [250])],
)
def test_measures_of_one_request(metric: str, expected: list[float]) -> None:
    assert measures.OF_REQUEST[metric](ANSWERED) == expected
    assert measures.values([ANSWERED, ANSWERED], metric) == expected * 2
    assert metric in measures.DEFINITIONS


def test_without_tokens_of_chunks_a_gap_is_one_token() -> None:
    assert measures.itl(RequestRecord(index=0, scheduled=0, gaps=[0.5, 0.25])) == [500, 250]
    assert measures.itl(RequestRecord(index=0, scheduled=0, gaps=[0.5], chunk_tokens=[0, 0])) == [500]


def test_where_chunks_do_not_tell_their_tokens_the_answers_are_shared_equally() -> None:
    answer = RequestRecord(index=0, scheduled=0, gaps=[0.5, 0.25], output_tokens=7)
    assert measures.itl(answer) == pytest.approx([500 * 3 / 7, 250 * 3 / 7])
    answer.finish_reason = "stop"
    assert measures.itl(answer) == [250, 125], "the token that ended it has no text"


def test_what_never_came_is_not_measured() -> None:
    failed = RequestRecord(index=0, scheduled=0, sent=0, ended=1, error="refused", error_kind="connect")
    assert not any(measures.OF_REQUEST[m](failed) for m in ("ttft", "tpot", "itl", "e2e", "queue"))
    one_token = RequestRecord(index=0, scheduled=0, first=1, last=1, output_tokens=1)
    assert measures.tpot(one_token) == []


def test_counted_requests_are_answered_or_failed() -> None:
    warm = RequestRecord(index=0, scheduled=0, counted=False)
    failed = RequestRecord(index=1, scheduled=0, error_kind="timeout")
    assert measures.succeeded([warm, failed, ANSWERED]) == [ANSWERED]
    assert measures.failed([warm, failed, ANSWERED]) == [failed]


@pytest.mark.parametrize(
    ("slo", "kept"),
    [
        ({}, True),
        ({"ttft": 250, "tpot": 250, "itl": 250, "e2e": 1250}, True),
        ({"ttft": 249}, False),
        ({"ttft": 900, "itl": 249}, False),
    ],
)
def test_every_limit_must_be_kept(slo: dict[str, float], kept: bool) -> None:
    assert measures.meets(ANSWERED, slo) is kept


def test_an_answer_of_one_token_keeps_limits_between_tokens() -> None:
    one = RequestRecord(index=0, scheduled=0, first=0.1, last=0.1, output_tokens=1)
    assert measures.meets(one, {"ttft": 200, "tpot": 1})
    assert not measures.meets(RequestRecord(index=0, scheduled=0), {"ttft": 200})
    assert not measures.meets(RequestRecord(index=0, scheduled=0, first=0.1, output_tokens=9), {"tpot": 1}), "not measured"


def test_the_largest_gap_must_keep_the_limit() -> None:
    answer = RequestRecord(index=0, scheduled=0, gaps=[0.1, 0.3], output_tokens=3)
    assert measures.meets(answer, {"itl": 300})
    assert not measures.meets(answer, {"itl": 299})
