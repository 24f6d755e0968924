"""What surrounds every handler: strictness, and errors as OpenAI's error object."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.harness import USER, WEATHER, Running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object of a response, which must have ``status`` and OpenAI's shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"best_of": 2}, "best_of"),
        ({"functions": []}, "functions"),
        ({"max_token": 3}, "max_token"),
        ({"stream_options": {"include_usag": True}}, "include_usag"),
        ({"messages": [{"role": "user", "content": "a", "weight": 1}]}, "weight"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache": 1}]}]}, "cache"),
        ({"tools": [{**WEATHER, "extra": 1}]}, "extra"),
        ({"tools": [{"type": "function", "function": {"name": "f", "extra": 1}}]}, "extra"),
        ({"tool_choice": {"type": "function", "function": {"name": "f", "extra": 1}}}, "extra"),
        ({"response_format": {"type": "json_object", "extra": 1}}, "extra"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "extra": 1}}}, "extra"),
        ({"structured_outputs": {"whitespace_pattern": "x"}}, "whitespace_pattern"),
    ],
)
def test_an_unknown_field_is_refused_by_name(server: Running, body: dict[str, Any], param: str) -> None:
    error = error_of(server.post(CHAT, {"messages": USER, **body}), 400)
    assert error["param"] == param
    assert param in error["message"]


WRONG: dict[str, tuple[Any, ...]] = {
    "stream": ("yes", 1),
    "stream_options": ([],),
    "n": (0, 129, 1.5, "1", True),
    "max_tokens": (-1, "9", 1e30, 1.5),
    "max_completion_tokens": (-1, 2.5),
    "min_tokens": (-1, "x"),
    "stop": ("", [""], 3, ["a"] * 17, ["x" * 1025]),
    "stop_token_ids": ([-1], "1", [1.5]),
    "ignore_eos": ("true", 1),
    "seed": (1.5, "1", 1 << 63),
    "temperature": (-0.1, 101, "hot"),
    "top_p": (0, -1, 1.1, "x"),
    "top_k": (-2, 1.5),
    "min_p": (-0.1, 1.1),
    "presence_penalty": (-2.1, 2.1),
    "frequency_penalty": (-2.1, 2.1),
    "repetition_penalty": (0, -1, 101),
    "logit_bias": ({"a": 1}, {"1": 101}, {"1": "x"}, {"-1": 1}, [1]),
    "logprobs": (1, "true"),
    "top_logprobs": (-1, 21, 1.5),
    "prompt_logprobs": (-1, 21),
    "response_format": ({}, {"type": "xml"}, "json_object", {"type": "json_schema"}),
    "structured_outputs": ([], {"choice": []}, {"choice": "a"}, {"json": 3}, {"regex": 1}),
    "tools": ({}, [{}], [{"type": "retrieval"}], [{"type": "function", "function": {"name": "a b"}}], [WEATHER] * 129),
    "tool_choice": ("any", {"type": "function"}, 1),
    "parallel_tool_calls": ("no",),
    "priority": (1.5, "high", 1 << 40),
    "cache_salt": (1, "x" * 1025),
    "request_id": ("", 1, "x" * 129),
    "deadline": (0, -1, "soon", 1e9),
    "user": (1,),
    "metadata": ([],),
    "messages": ([], {}, [{}], [{"role": "robot", "content": "a"}], [{"role": "user", "content": 1}], None),
    "model": (1, ["tiny"]),
}


@pytest.mark.parametrize("field", WRONG)
def test_wrong_values_are_refused_by_field(server: Running, field: str) -> None:
    for value in WRONG[field]:
        error = error_of(server.post(CHAT, {"messages": USER, "max_tokens": 1, field: value}), 400)
        assert error["param"].startswith(field), (value, error)


def test_descriptive_fields_are_accepted(server: Running) -> None:
    descriptive = {
        "user": "me",
        "metadata": {"run": "1"},
        "store": False,
        "service_tier": "auto",
        "safety_identifier": "x",
        "prompt_cache_key": "y",
    }
    assert server.chat(**descriptive, max_tokens=1)["usage"]["completion_tokens"] == 1


def test_null_is_the_same_as_leaving_a_field_out(server: Running) -> None:
    fields = dict.fromkeys(f for f in WRONG if f not in ("messages", "model"))
    assert server.chat(**{**fields, "max_completion_tokens": 1})["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "nan"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "deadline", "repetition_penalty"])
def test_numbers_that_are_none_are_refused(server: Running, field: str, text: str) -> None:
    raw = json.dumps({"model": server.model, "messages": USER})[:-1] + f', "{field}": {text}}}'
    error_of(server.http.post(CHAT, content=raw), 400)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff"}]}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}]} trailing',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model": "tiny", "metadata": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
def test_broken_bodies_are_refused(server: Running, path: str, raw: bytes) -> None:
    error_of(server.http.post(path, content=raw), 400)


@pytest.mark.parametrize("depth", [100, 500, 900])
def test_deep_values_are_answered(server: Running, depth: int) -> None:
    """Deep enough for Python's recursion limit, not for the decoder's: whoever walks them must not fall over."""
    deep = '{"properties": {"a": ' * depth + "{}" + "}}" * depth
    function = {"type": "function", "function": {"name": "f", "parameters": "DEEP"}}
    for body in (
        {"structured_outputs": {"json": "DEEP"}},
        {"chat_template_kwargs": {"x": "DEEP"}},
        {"tools": [function]},
        {"tools": [function], "tool_choice": "required"},
        {"metadata": {"x": "DEEP"}},
    ):
        raw = json.dumps({"model": server.model, "messages": USER, "max_tokens": 1, **body}).replace('"DEEP"', deep)
        response = server.http.post(CHAT, content=raw)
        assert response.status_code in (200, 400), response.text


def test_an_unknown_model_is_404(server: Running) -> None:
    for path, body in (
        (CHAT, {"messages": USER}),
        (TEXT, {"prompt": "a"}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [3]}),
    ):
        error = error_of(server.post(path, {**body, "model": "gpt-5"}), 404)
        assert error["code"] == "model_not_found"
        assert "gpt-5" in error["message"]
        assert server.model in error["message"]


def test_paths_and_methods_that_do_not_exist(server: Running) -> None:
    error_of(server.http.get("/v1/nothing"), 404)
    error_of(server.http.post("/v2", json={}), 404)
    response = server.http.get(CHAT)
    error_of(response, 405)
    assert response.headers["allow"] == "POST"
    error_of(server.http.delete("/v1/models"), 405)


def test_whole_numbers_may_have_a_point(server: Running) -> None:
    usage = server.chat(max_tokens=3.0, n=2.0, ignore_eos=True, logit_bias={"70": 1.0}, temperature=1)["usage"]
    assert usage["completion_tokens"] == 6


def test_two_live_requests_cannot_have_one_id(server: Running) -> None:
    with server.streaming(max_tokens=10000, ignore_eos=True, request_id="mine"):
        error = error_of(server.post(TEXT, {"prompt": "a", "request_id": "mine"}), 400)
        assert error["param"] == "request_id"
    server.wait_idle()
    answer = server.complete(request_id="mine", max_tokens=1)
    assert answer["id"] == "cmpl-mine"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*WRONG, "x"]), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(field=st.sampled_from(sorted(WRONG)), value=json_values)
def test_any_value_of_a_field_is_answered(server: Running, field: str, value: Any) -> None:
    body = {"messages": USER, "max_tokens": 2, "model": server.model, field: value}
    response = server.http.post(CHAT, content=json.dumps(body))
    assert response.status_code in (200, 400, 404, 408), response.text
    if response.status_code != 200:
        error_of(response, response.status_code)
