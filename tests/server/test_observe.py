"""``/explain`` and ``/debug/state`` over HTTP: exact sums, refusals and departures included, and nothing for strangers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from forno.config import SchedulerConfig
from forno.server import observe
from tests.server.harness import LONG, USER, Running, eventually, running

TOP = {
    "model",
    "version",
    "uptime",
    "running",
    "waiting",
    "kv_usage",
    "kv_waste",
    "prefix_hit_share",
    "ceilings",
    "seconds_by_label",
    "steps",
    "requests",
    "rates",
}


def explained(server: Running, id: str, **query: Any) -> dict[str, Any]:
    """The only request of a response, checked."""
    response = server.http.get(f"/explain/{id}", params=query)
    assert response.status_code == 200, response.text
    (found,) = response.json()["requests"]
    check(found)
    return found


def check(found: dict[str, Any]) -> None:
    assert sum(p["seconds"] for p in found["parts"]) == pytest.approx(found["seconds"], abs=1e-6)
    assert sum(p["end"] - p["start"] for p in found["phases"]) == pytest.approx(found["seconds"], abs=1e-6)
    assert all(a["saves"] > 0 for a in found["advice"])
    assert len(found["advice"]) <= 2


def finished(server: Running, id: str) -> dict[str, Any]:
    """Once the server has noticed that the response is over, which the client may know before."""
    eventually(lambda: explained(server, id)["state"] in ("finished", "refused"))
    return explained(server, id)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat", "complete"])
def test_a_request_is_explained(server: Running, stream: bool, path: str) -> None:
    answer = getattr(server, path)(max_tokens=8, stream=stream, ignore_eos=True)
    found = finished(server, answer["id"])
    assert (found["id"], found["reason"], found["generated_tokens"]) == (answer["id"], "length", 8)
    kinds = {p["kind"] for p in found["parts"]}
    assert {"reading", "tokenizing", "queued", "prefill", "decode", "overhead", "detokenizing", "responding"} <= kinds
    assert [p["phase"] for p in found["phases"]] == ["arriving", "waiting", "prefill", "decode", "leaving"]
    assert 0 < found["ttft"] <= found["seconds"]
    assert found["lookup"]["matched"] == found["cached_tokens"]
    segments = explained(server, answer["id"], segments=1)["segments"]
    assert [s["start"] for s in segments[1:]] == [s["end"] for s in segments[:-1]]


def test_several_answers_are_explained_one_by_one(server: Running) -> None:
    answer = server.chat(max_tokens=4, n=3)
    eventually(lambda: len(server.http.get(f"/explain/{answer['id']}").json()["requests"]) == 3)
    response = server.http.get(f"/explain/{answer['id']}").json()
    assert [r["id"] for r in response["requests"]] == [f"{answer['id']}-{i}" for i in range(3)]
    for request in response["requests"]:
        check(request)
    assert explained(server, f"{answer['id']}-1")["max_tokens"] == 4


def test_one_that_runs_and_one_that_left(server: Running) -> None:
    with server.streaming(request_id="leaves", **LONG):
        found = explained(server, "cmpl-leaves")
        assert (found["state"], found["reason"]) == ("running", "")
        live = server.http.get("/debug/state").json()["requests"]
        assert [(r["id"], r["state"]) for r in live] == [("cmpl-leaves", "running")]
    assert finished(server, "cmpl-leaves")["reason"] == "abort"


def test_one_that_was_refused(server: Running) -> None:
    body = {"messages": USER, "max_tokens": 99999, "request_id": "too long"}
    response = server.post("/v1/chat/completions", body)
    assert response.status_code == 400
    assert response.headers["x-request-id"] == "chatcmpl-too long"
    found = explained(server, "chatcmpl-too long")
    assert (found["state"], found["error"]) == ("refused", "PromptTooLongError")
    assert {p["kind"] for p in found["parts"]} == {"reading", "tokenizing", "responding"}


@pytest.mark.parametrize("name", ["a/b", "täglich\x00", "..", "?x=1#y", "%2F"])
def test_ids_that_clients_choose(server: Running, name: str) -> None:
    server.complete(max_tokens=1, request_id=name)
    assert finished(server, quote(f"cmpl-{name}", safe=""))["id"] == f"cmpl-{name}"
    refused = server.post("/v1/completions", {"prompt": "x", "max_tokens": 99999, "request_id": name})
    assert refused.status_code == 400
    assert refused.headers.get("x-request-id") == (f"cmpl-{name}" if name.isascii() else None), "headers hold ASCII"


def seats_advised(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [a for a in found["advice"] if a["flag"].startswith("--max-num-seqs")]


def test_one_that_the_queue_was_too_full_for(model_path: Path) -> None:
    config = SchedulerConfig(max_num_seqs=1, max_num_queued_reqs=1)
    with (
        running(model_path, config) as server,
        server.streaming(request_id="a", **LONG),
        server.streaming_later(request_id="b"),
    ):
        eventually(lambda: server.stats().waiting == 1)
        eventually(lambda: seats_advised(explained(server, "cmpl-b")))  # once it has waited for longer than anything else took
        waits = explained(server, "cmpl-b")
        assert "seats" in waits["waited_for"]
        assert waits["state"] == "waiting"
        by = next(p["by"] for p in waits["parts"] if p["kind"] == "queued")
        assert by.keys() == {"cmpl-a"}
        (advice,) = seats_advised(waits)
        assert advice["saves"] <= waits["seconds"]
        refused = server.post("/v1/completions", {"prompt": "x", "request_id": "c"})
        assert refused.status_code == 429
        assert explained(server, "cmpl-c")["error"] == "QueueFullError"
        live = {r["id"]: r for r in server.http.get("/debug/state").json()["requests"]}
        assert (live["cmpl-b"]["state"], live["cmpl-b"]["waits_for"]) == ("waiting", "seats")


def test_the_list_names_the_latest_first(server: Running) -> None:
    ids = [server.complete(max_tokens=2)["id"] for _ in range(3)]
    eventually(lambda: not server.serving.engine.recorder.live())
    found = server.http.get("/explain", params={"count": 2}).json()["requests"]
    assert [r["id"] for r in found] == ids[:0:-1]
    assert all(r["slowest"] and 0 < r["slowest_seconds"] <= r["seconds"] for r in found)
    for request in found:
        alone = finished(server, request["id"])
        assert (request["seconds"], request["slowest"]) == (alone["seconds"], alone["parts"][0]["kind"])


def test_an_unknown_id(server: Running) -> None:
    response = server.http.get("/explain/nobody")
    assert response.status_code == 404
    assert "no request 'nobody' came here" in response.json()["error"]["message"]


def test_the_beginning_of_an_id_is_enough_if_only_one_begins_so(server: Running) -> None:
    for name in ("alike-1", "alike-1-more", "alike-2"):
        server.complete(max_tokens=1, request_id=name)
    assert explained(server, "cmpl-alike-2")["id"] == "cmpl-alike-2"
    assert explained(server, "cmpl-alike-1-m")["id"] == "cmpl-alike-1-more"
    assert explained(server, "cmpl-alike-1")["id"] == "cmpl-alike-1", "a whole id is meant before a beginning"
    response = server.http.get("/explain/cmpl-alike")
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "3 requests begin with" in message
    assert "cmpl-alike-2, cmpl-alike-1-more, cmpl-alike-1" in message


def test_several_answers_by_the_beginning_of_their_response(server: Running) -> None:
    id = server.chat(max_tokens=2, n=2)["id"]
    eventually(lambda: len(server.http.get(f"/explain/{id}").json()["requests"]) == 2)
    found = server.http.get(f"/explain/{id[:-3]}").json()
    assert (found["id"], len(found["requests"])) == (id, 2)


def test_no_id_is_nobodys(server: Running) -> None:
    server.complete(max_tokens=1)
    assert server.http.get("/explain/").status_code == 404


def test_of_many_answers_the_first_are_explained(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "MOST_SEGMENTED", 2)
    monkeypatch.setattr(observe, "MOST_RECENT", 3)
    id = server.chat(max_tokens=1, n=4)["id"]
    eventually(lambda: server.http.get(f"/explain/{id}").json()["answers"] == 4)
    assert len(server.http.get(f"/explain/{id}").json()["requests"]) == 3
    refused = server.http.get(f"/explain/{id}", params={"segments": 1})
    assert refused.status_code == 400
    assert f"{id}-0" in refused.json()["error"]["message"]
    assert explained(server, f"{id}-3", segments=1)["segments"]


def test_who_asks_waits_for_others_who_ask_and_serving_does_not(server: Running) -> None:
    """However many ask: one of them is answered at a time, beside streams and tokenizers."""
    hold, begun = threading.Event(), threading.Event()
    reader = server.serving.reader
    reader.submit(lambda: (begun.set(), hold.wait(30)))
    begun.wait(30)
    try:
        with ThreadPoolExecutor(16) as pool:
            asking = [pool.submit(server.http.get, path) for path in ("/explain", "/debug/state", "/debug/trace") * 5]
            assert server.complete(max_tokens=2, stop=["y" * 1024] * 16)["id"], "a large body, prepared in a thread"
            assert server.http.get("/metrics").status_code == server.http.get("/debug/cache").status_code == 200
            assert not any(answer.done() for answer in asking)
            hold.set()
            assert {answer.result().status_code for answer in asking} == {200}
    finally:
        hold.set()


def test_an_id_that_was_forgotten(server: Running) -> None:
    recorder = server.serving.engine.recorder
    server.complete(max_tokens=1)
    most, recorder.max_requests = recorder.max_requests, 1
    try:
        assert "among the last" in server.http.get("/explain/nobody").json()["error"]["message"]
    finally:
        recorder.max_requests = most


@pytest.mark.parametrize(
    "query", ["/explain?count=0", "/explain?count=x", "/explain?n=1", "/debug/state?steps=-1", "/explain/x?segments=2"]
)
def test_wrong_parameters_are_named(server: Running, query: str) -> None:
    server.complete(max_tokens=1, request_id="known")
    assert server.http.get(query.replace("/x", "/cmpl-known")).status_code == 400


def test_the_state_has_all_that_top_shows(server: Running) -> None:
    server.complete(max_tokens=4)
    state = server.http.get("/debug/state", params={"steps": 2}).json()
    assert state.keys() == TOP
    assert len(state["steps"]) == 2
    assert state["steps"][1]["number"] == state["steps"][0]["number"] + 1
    assert state["steps"][-1].keys() >= {"number", "start", "seconds", "wall", "rows", "tokens", "prompt_tokens", "label"}
    assert server.http.get("/debug/state", params={"steps": 0}).json()["steps"] == []


def test_strangers_learn_nothing(model_path: Path) -> None:
    with running(model_path, keys=(b"secret",)) as server:
        for path in ("/explain", "/explain/x", "/debug/state"):
            assert httpx.get(server.url + path).status_code == 401
        headers = {"authorization": "Bearer secret"}
        assert httpx.get(server.url + "/explain", headers=headers).status_code == 200


def test_without_recording(model_path: Path) -> None:
    with running(model_path, record=False) as server:
        id = server.complete(max_tokens=2)["id"]
        response = server.http.get(f"/explain/{id}")
        assert response.status_code == 404
        assert "--no-record" in response.json()["error"]["message"]
        assert server.http.get("/explain").json()["requests"] == []
        assert server.http.get("/debug/state").json()["steps"] == []


def test_steps_are_labelled_and_all_time_has_a_label(server: Running) -> None:
    server.complete(max_tokens=20, ignore_eos=True)
    server.wait_idle()
    state = server.http.get("/debug/state", params={"steps": 10}).json()
    assert state["ceilings"]["dram"] == 5e10
    assert set(state["seconds_by_label"]) == {"weights", "kv", "compute", "overhead", "starved", "idle"}
    assert len(state["steps"]) == 10
    for step in state["steps"]:
        assert step["label"] in state["seconds_by_label"]
        assert min(step["predicted"], step["flops"], step["bytes"], step["share"], step["intensity"]) > 0
    more = server.http.get("/debug/state", params={"steps": 2000}).json()["steps"]
    assert len(more) == min(2000, more[-1]["number"]), "all that there were"
    spent = sum(state["seconds_by_label"].values())
    first, last = state["steps"][0], state["steps"][-1]
    assert spent >= last["start"] + last["wall"] - first["start"]
