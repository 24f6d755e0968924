"""Goodput: the language of ``--slo``, which requests miss what, and the counters of a real server."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.engine.stats import FinishedRequest
from forno.errors import ConfigError, RequestError
from forno.request import FinishReason, RequestTimes
from forno.server.goodput import LIMITS, Goodput, SloClass, missed, parse_slo
from tests.server.harness import LONG, eventually, running
from tests.server.test_engine_metrics import scrape


def finished(
    slo: str = "a", ttft: float = 1.0, tpot: float = 0.5, tokens: int = 5, reason: FinishReason = FinishReason.LENGTH
) -> FinishedRequest:
    """A request that arrived at 10 and had its first token ``ttft`` later, if it had any."""
    first = 10.0 + ttft if tokens else 0.0
    end = 10.0 + ttft + tpot * max(tokens - 1, 0)
    times = RequestTimes(arrival=10.0, scheduled=10.0, first_token=first, finished=end)
    return FinishedRequest("r", reason, times, 8, 0, tokens, 0, 16, 0, 0, slo)


def test_classes_are_read_in_order() -> None:
    assert parse_slo("interactive:ttft=0.5,tpot=0.05; batch: e2e = 60 ;") == (
        SloClass("interactive", ttft=0.5, tpot=0.05),
        SloClass("batch", e2e=60),
    )
    assert parse_slo("ttft=500ms,tpot=50 ms,e2e=2s") == (SloClass("default", 0.5, 0.05, 2.0),)
    assert parse_slo("") == parse_slo("  ") == ()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (";", "names no class"),
        ("a:ttft=1;a:e2e=2", "'a' twice"),
        ("a:ttft=1,ttft=2", "ttft twice"),
        ("ttft=1;b:e2e=2", "'ttft=1' has no name"),
        ("a b:ttft=1", "'a b' is no name"),
        (":ttft=1", "'' is no name"),
        ("a:", "'' of class 'a'"),
        ("a:itl=1", "'itl=1' of class 'a' is not one of ttft, tpot, e2e"),
        ("a:ttft", "'ttft' of class 'a'"),
        ("a:ttft=0", "ttft of class 'a' must be seconds above 0"),
        ("a:ttft=-1", "got '-1'"),
        ("a:ttft=nan", "got 'nan'"),
        ("a:ttft=1e3", "got '1e3'"),
        ("a:ttft=" + "9" * 400, "must be seconds above 0"),
    ],
)
def test_a_mistake_is_named(text: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match="--slo") as caught:
        parse_slo(text)
    assert wrong in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab:;,=.-1 ttfe2ms", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        classes = parse_slo(text)
    except ConfigError:
        return
    for slo in classes:
        limits = [getattr(slo, limit) for limit in LIMITS]
        assert any(0 < value < float("inf") for value in limits)


def test_each_limit_is_held_on_its_own() -> None:
    slo = SloClass("a", ttft=1.0, tpot=0.5, e2e=3.0)
    assert missed(slo, finished()) == []  # exactly at every limit
    assert missed(slo, finished(ttft=1.01, tpot=0.1)) == ["ttft"]
    assert missed(slo, finished(ttft=0.1, tpot=0.51)) == ["tpot"]
    assert missed(slo, finished(ttft=0.1, tpot=0.5, tokens=8)) == ["e2e"]
    assert missed(slo, finished(ttft=5.0, tokens=1)) == ["ttft", "e2e"]
    assert missed(slo, finished(reason=FinishReason.ERROR)) == ["error"]
    assert missed(SloClass("b"), finished(ttft=1e9)) == []


def test_one_token_has_no_time_between_tokens() -> None:
    assert missed(SloClass("a", tpot=0.001), finished(tokens=1)) == []


def test_a_client_that_left_counts_if_it_had_waited_too_long() -> None:
    goodput = Goodput((SloClass("a", ttft=1.0),))
    goodput.observe(finished(ttft=0.5, tokens=0, reason=FinishReason.ABORT))
    assert (goodput.met["a"], goodput.failed["a"]) == (0, 0)
    goodput.observe(finished(ttft=1.5, tokens=0, reason=FinishReason.ABORT))
    assert goodput.missed["a", "ttft"] == goodput.failed["a"] == 1


def test_refused_requests_count_as_missed() -> None:
    goodput = Goodput((SloClass("a", ttft=1.0), SloClass("b", e2e=1.0)))
    goodput.refuse(None)
    goodput.refuse("b")
    goodput.refuse("c")
    assert goodput.failed == {"a": 1, "b": 1}
    assert goodput.missed["a", "error"] == goodput.missed["b", "error"] == 1


def test_unknown_classes_are_refused_by_name() -> None:
    goodput = Goodput((SloClass("a"), SloClass("b")))
    assert [goodput.choose(name) for name in (None, "a", "b")] == ["a", "a", "b"]
    with pytest.raises(RequestError, match="known are a, b"):
        goodput.choose("c")
    assert Goodput().choose(None) == ""
    with pytest.raises(RequestError, match="start it with --slo"):
        Goodput().choose("a")


def test_the_counters_of_a_server(model_path: Path) -> None:
    with running(model_path, slo="fast:ttft=3600,e2e=3600;strict:e2e=0.000001;late:ttft=3600") as server:
        server.complete(max_tokens=3)
        for path, asked in (
            ("/v1/completions", {"prompt": "the"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ):
            answer = server.post(path, {**asked, "max_tokens": 2}, headers={"x-slo-class": "strict"})
            assert answer.status_code == 200
        refused = server.post("/v1/completions", {"prompt": "the"}, headers={"x-slo-class": "loose"})
        with server.streaming(headers={"x-slo-class": "late"}, **LONG):
            pass
        server.wait_idle()
        found = scrape(server)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "x-slo-class"
    assert "fast, strict, late" in refused.json()["error"]["message"]
    counted = {key: found[f"forno:slo_requests_total{key}"] for key in ("[true][fast]", "[false][fast]", "[false][strict]")}
    assert counted == {"[true][fast]": 1, "[false][fast]": 0, "[false][strict]": 2}
    assert found["forno:slo_missed_total[e2e][strict]"] == 2
    assert found["forno:slo_missed_total[e2e][fast]"] == 0
    assert (
        found["forno:slo_requests_total[true][late]"] == found["forno:slo_requests_total[false][late]"] == 0
    )  # the client left
    assert found["forno:slo_limit_seconds[ttft][fast]"] == 3600
    assert "forno:slo_limit_seconds[tpot][fast]" not in found


def test_a_server_without_classes_has_no_samples(model_path: Path) -> None:
    with running(model_path) as server:
        server.complete(max_tokens=1)
        eventually(lambda: "forno:request_success_total[length]" in scrape(server))
        assert not [name for name in scrape(server) if name.startswith("forno:slo_")]
        assert server.post("/v1/completions", {"prompt": "a"}, headers={"x-slo-class": "a"}).status_code == 400
