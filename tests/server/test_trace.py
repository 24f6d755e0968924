"""``GET /debug/trace`` on a real server."""

from __future__ import annotations

import pytest

from tests.observe.test_chrome_trace import check_format
from tests.server.harness import Running

SECRET = "perfidious albatross"


def test_the_trace_of_a_server(server: Running) -> None:
    ids = [server.complete(prompt=SECRET, max_tokens=5, ignore_eos=True)["id"] for _ in range(2)]
    answer = server.http.get("/debug/trace")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    trace = answer.json()
    check_format(trace)
    assert trace["otherData"]["model"] == "tiny"
    slices = [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {*ids, "step", "run", "decode"} <= set(slices)
    assert not any(word in answer.text for word in SECRET.split())


def test_the_number_of_steps(server: Running) -> None:
    server.complete(max_tokens=5, ignore_eos=True)
    trace = server.http.get("/debug/trace?steps=3").json()
    assert [e["name"] for e in trace["traceEvents"] if e["ph"] == "X"].count("step") == 3


@pytest.mark.parametrize("query", ["steps=0", "steps=-1", "steps=x", "steps=", "steps=99999999999", "step=3", "steps=²"])
def test_bad_queries_are_refused(server: Running, query: str) -> None:
    answer = server.http.get(f"/debug/trace?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.split("=")[0]
