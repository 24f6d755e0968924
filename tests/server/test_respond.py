"""Clients that leave, requests that expire, queues that are full, and servers that stop."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from forno.config import SchedulerConfig
from forno.request import FinishReason
from tests.server.harness import CONTEXT, LONG, USER, WEATHER, Running, events, eventually, running
from tests.server.test_app import CHAT, TEXT, error_of

BLOCK = 32


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("extra", [{}, {"n": 3}, {"logprobs": True}])
def test_leaving_a_stream_frees_its_blocks(server: Running, path: str, extra: dict[str, Any]) -> None:
    if path == TEXT and "logprobs" in extra:
        extra = {"logprobs": 1}
    aborted = server.stats().finished[FinishReason.ABORT]
    body = {"messages": USER} if path == CHAT else {"prompt": "the"}
    with server.streaming(path, **body, **LONG, **extra) as lines:
        next(lines)
        assert server.stats().running == extra.get("n", 1)
        assert server.stats().kv_usage > 0
    server.wait_idle()
    assert server.stats().finished[FinishReason.ABORT] == aborted + extra.get("n", 1)


def test_leaving_takes_effect_in_the_next_step(server: Running) -> None:
    with server.streaming(max_tokens=CONTEXT - 100, ignore_eos=True):
        pass
    server.wait_idle()
    # The request had seconds of work left; were it not cancelled, waiting for idleness would see thousands of tokens.
    done = server.serving.engine.drain_finished()
    assert done[-1].reason is FinishReason.ABORT
    assert done[-1].num_generated_tokens < CONTEXT // 2


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_leaving_before_the_answer_frees_its_blocks(server: Running, path: str) -> None:
    """No stream, so nothing is ever written that could fail: the server must notice by itself."""
    aborted = server.stats().finished[FinishReason.ABORT]
    body = {"messages": USER, **LONG} if path == CHAT else {"prompt": "the", **LONG, "n": 2}
    raw = server.http.build_request("POST", path, json={"model": server.model, **body})
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw.content)}\r\n\r\n".encode()
    host, port = server.http.base_url.host, server.http.base_url.port
    with socket.create_connection((host, port)) as connection:
        connection.sendall(head + raw.content)
        eventually(lambda: server.stats().running == body.get("n", 1))
    server.wait_idle()
    assert server.stats().finished[FinishReason.ABORT] == aborted + body.get("n", 1)


def test_choices_share_the_blocks_of_their_prompt(model_path: Path) -> None:
    """Both run at once in a cache that has no room for the prompt twice."""
    with running(model_path, blocks=120) as server:
        server.complete(prompt=[40 + i % 30 for i in range(BLOCK * 100)], n=2, max_tokens=200, ignore_eos=True)
        first, second = server.serving.engine.drain_finished()
        assert second.times.scheduled < first.times.finished
        assert server.stats().preemptions == 0


def _choices(line: str) -> list[dict[str, Any]]:
    return events(line + "\ndata: [DONE]")[0]["choices"] if line else []


COUNTED = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(("path", "asked"), [(TEXT, {"prompt": "the"}), (CHAT, {"messages": USER, "logprobs": True})])
def test_every_event_counts_tokens_for_clients_who_ask(server: Running, path: str, asked: dict[str, Any]) -> None:
    """Each event's count is of its own choice, and a client that reads one event after the other misses no token."""
    body = {**asked, "n": 2, "max_tokens": 9, "ignore_eos": True, "stream": True, "seed": 3}
    *parts, last = events(server.post(path, {**body, "stream_options": COUNTED}).text)
    for index in (0, 1):
        counts = [part["usage"] for part in parts if part["choices"][0]["index"] == index and "usage" in part]
        tokens = [count["completion_tokens"] for count in counts]
        assert tokens == sorted(tokens)
        assert (tokens[0] >= 1, tokens[-1]) == (True, 9)
        assert {count["prompt_tokens"] for count in counts} == {last["usage"]["prompt_tokens"]}
    assert last["usage"]["completion_tokens"] == 18
    plain = events(server.post(path, {**body, "stream_options": {"include_usage": True}}).text)
    assert not any("usage" in part for part in plain[:-1])


def test_a_deadline_is_an_error_never_a_length(server: Running) -> None:
    for stream in (False, True):
        error = error_of(server.post(TEXT, {"prompt": "the", **LONG, "deadline": 0.0001, "stream": stream}), 408)
        assert error["code"] == "deadline_exceeded"


def test_a_deadline_in_the_middle_of_a_stream_is_an_error_event(server: Running) -> None:
    response = server.post(CHAT, {"messages": USER, **LONG, "deadline": 0.5, "stream": True})
    assert response.status_code == 200
    *parts, last = events(response.text)
    assert last["error"]["code"] == "deadline_exceeded"
    assert parts
    assert all(c["finish_reason"] is None for part in parts for c in part["choices"])


def test_the_default_deadline_holds(model_path: Path) -> None:
    with running(model_path, request_timeout=0.0001) as server:
        error_of(server.post(CHAT, {"messages": USER, **LONG}), 408)


@pytest.fixture(scope="module")
def small(model_path: Path) -> Iterator[Running]:
    """One seat, and one place to wait."""
    scheduler = SchedulerConfig(max_num_seqs=1, max_num_queued_reqs=1, scheduling_policy="priority")
    with running(model_path, scheduler) as server:
        yield server


def test_a_full_queue_says_when_to_come_back(small: Running) -> None:
    with ThreadPoolExecutor() as pool, small.streaming(**LONG):
        second = pool.submit(small.post, TEXT, {"prompt": "the", "max_tokens": 1})
        eventually(lambda: small.stats().waiting == 1)
        for stream in (False, True):
            response = small.post(TEXT, {"prompt": "the", "stream": stream})
            assert error_of(response, 429)["code"] == "queue_full"
            assert int(response.headers["retry-after"]) >= 1
        rejected = 'forno:admission_rejections_total{engine="0",model_name="tiny",reason="QueueFullError"}'
        assert rejected in small.http.get("/metrics").text
    assert second.result().status_code == 200
    small.wait_idle()


def test_all_of_a_request_is_refused_or_none(small: Running) -> None:
    error_of(small.post(TEXT, {"prompt": ["a"] * 5}), 429)
    small.wait_idle()
    assert small.post(TEXT, {"prompt": ["a"] * 2, "max_tokens": 1}).status_code == 200


def test_priority_counts_under_its_policy(small: Running) -> None:
    assert small.complete(priority=-5, max_tokens=1)["usage"]["completion_tokens"] == 1


def test_draining_refuses_new_requests_and_finishes_the_running(model_path: Path) -> None:
    with running(model_path) as server, ThreadPoolExecutor() as pool:
        whole = pool.submit(server.chat, max_tokens=3000, ignore_eos=True, tools=[WEATHER])
        with server.streaming(max_tokens=3000, ignore_eos=True) as lines:
            eventually(lambda: server.stats().running == 2)
            server.terminate()
            eventually(lambda: server.serving.engine.draining)
            assert error_of(server.http.get("/health"), 503)["code"] == "draining"
            response = server.post(TEXT, {"prompt": "the"})
            assert error_of(response, 503)["code"] == "draining"
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert _choices(rest[-2])[0]["finish_reason"] == "length"
        assert whole.result()["usage"]["completion_tokens"] == 3000
        eventually(lambda: server.server.should_exit)


def test_what_a_shutdown_cuts_short_is_an_error(model_path: Path) -> None:
    with running(model_path, shutdown_timeout=0.01) as server, ThreadPoolExecutor() as pool:
        whole = pool.submit(server.post, CHAT, {"messages": USER, **LONG})
        with server.streaming(**LONG) as lines:
            eventually(lambda: server.stats().running == 2)
            server.terminate()
            rest = [line for line in lines if line]
        assert events("\n".join(rest))[-1]["error"]["code"] == "draining"
        assert error_of(whole.result(), 503)["code"] == "draining"


def test_a_failed_engine_is_unhealthy(model_path: Path) -> None:
    with running(model_path) as server:

        def broken(plan: Any) -> Any:
            raise RuntimeError("a bug")

        server.serving.engine.engine.runner.run = broken  # type: ignore[method-assign]
        error_of(server.post(TEXT, {"prompt": "the"}), 500)
        assert error_of(server.http.get("/health"), 503)["code"] == "unhealthy"
        error_of(server.post(TEXT, {"prompt": "the"}), 500)
        server.serving.engine._failure = None  # it was meant to fail
