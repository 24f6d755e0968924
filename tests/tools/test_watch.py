"""What ``forno top`` makes of a server's answers, and of answers that are none."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.errors import UnreachableError
from forno.tools.watch import Watch, quantile, read_histograms
from tests.helpers.pages import serving
from tests.tools import fake_state


def test_shares_and_percentiles_are_of_what_happened_lately() -> None:
    before, after = fake_state.state(uptime=100.0), fake_state.state(uptime=104.0)
    after["seconds_by_label"] = {**before["seconds_by_label"], "kv": before["seconds_by_label"]["kv"] + 4.0}
    with serving(fake_state.pages(before, fake_state.metrics(1))) as pages:
        watch = Watch(pages.url)
        watch.ask(10.0)
        assert watch.seconds is None
        assert watch.shares() == pytest.approx(
            {"weights": 0.52, "kv": 0.11, "compute": 0.2, "overhead": 0.05, "starved": 0.02, "idle": 0.1}
        )
        assert watch.percentiles()["ttft"] == pytest.approx({"p50": 0.003, "p95": 0.008, "p99": 0.008})
        pages.pages["/debug/state"] = (200, json.dumps(after))
        watch.ask(14.0)
    assert watch.seconds == 4.0
    assert watch.shares()["kv"] == 1.0
    assert watch.percentiles()["itl"]["p50"] == pytest.approx(0.003)  # nothing new: what there was


def test_old_samples_are_forgotten_and_a_restart_begins_anew() -> None:
    with serving(fake_state.pages(fake_state.state(uptime=100.0), fake_state.metrics())) as pages:
        watch = Watch(pages.url)
        for second in range(30):
            watch.ask(float(second))
        assert watch.seconds == 10.0
        pages.pages["/debug/state"] = (200, json.dumps(fake_state.state(uptime=1.0)))
        watch.ask(31.0)
        assert len(watch.samples) == 1


def test_the_key_is_sent() -> None:
    with serving(fake_state.pages(fake_state.state())) as pages:
        Watch(pages.url, key="secret").ask(0.0)
        assert pages.headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("path", "status", "body", "says"),
    [
        ("/debug/state", 401, "", "wants an API key"),
        ("/debug/state", 404, "", "no forno server"),
        ("/metrics", 500, "", "answers 500"),
        ("/debug/state", 200, "<html>", "no JSON"),
        ("/debug/state", 200, "[1]", "no JSON object"),
        ("/debug/state", 200, '{"running": "many"}', "not what forno"),
    ],
)
def test_bad_answers_are_explained(path: str, status: int, body: str, says: str) -> None:
    with serving(fake_state.pages(fake_state.state())) as pages:
        watch = Watch(pages.url)
        watch.ask(0.0)
        pages.pages[path] = (status, body)
        with pytest.raises(UnreachableError, match=says):
            watch.ask(1.0)
    assert len(watch.samples) == 1


def test_nobody_there() -> None:
    with serving(fake_state.pages()) as pages:
        pass
    with pytest.raises(UnreachableError, match="refused"):
        Watch(pages.url).ask(0.0)


def test_unknown_numbers_are_no_obstacle() -> None:
    """A server that measured nothing yet says null."""
    empty = {key: None for key, value in fake_state.state().items() if not isinstance(value, list)}
    with serving(fake_state.pages({**empty, "steps": [], "requests": [], "of the future": 1})) as pages:
        watch = Watch(pages.url)
        watch.ask(0.0)
    assert watch.shares() == watch.percentiles() == {}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.0001, 20), min_size=1, max_size=40), st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], q: float) -> None:
    bounds = [0.001, 0.01, 0.1, 1.0, 10.0, math.inf]
    buckets = {bound: float(sum(v <= bound for v in values)) for bound in bounds}
    exact = sorted(values)[max(math.ceil(q * len(values)) - 1, 0)]
    high = next(bound for bound in bounds if exact <= bound)
    low = max((bound for bound in bounds if bound < high), default=0.0)
    found = quantile(buckets, q)
    assert found is not None
    assert low <= found <= (10.0 if math.isinf(high) else high)


def test_no_observation_has_no_quantile() -> None:
    assert quantile({}, 0.5) is None
    assert quantile({1.0: 0.0, math.inf: 0.0}, 0.5) is None


@pytest.mark.parametrize("prefix", ["forno", "vllm"])
def test_histograms_are_found_under_any_prefix(prefix: str) -> None:
    found = read_histograms(fake_state.metrics(2, prefix))
    assert found["e2e"] == {0.001: 0, 0.002: 20, 0.004: 180, 0.008: 180, math.inf: 200}
    assert read_histograms("x 1\n") == {}


@pytest.mark.parametrize("line", ['{le="x"} 1', '{le="1"}', '{engine="0"} 1', '{le="1"} many', " 1"])
def test_a_bucket_that_cannot_be_read_is_none(line: str) -> None:
    assert read_histograms(f"a:time_to_first_token_seconds_bucket{line}\n") == {}
