"""Chat completions: every option, whole and streamed, which must say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.harness import CLOCK, USER, WEATHER, Running

FORM = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'


def says(*texts: str) -> dict[str, Any]:
    """Options that make a random model say one of ``texts``."""
    return {"structured_outputs": {"choice": list(texts)}}


SAME: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"seed": 5, "temperature": 1.5},
    "nucleus": {"seed": 1, "top_p": 0.5, "top_k": 40, "min_p": 0.01},
    "penalties": {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
    "several": {"seed": 3, "n": 3},
    "logprobs": {"seed": 4, "logprobs": True, "top_logprobs": 3},
    "sampled only": {"seed": 4, "logprobs": True},
    "prompt logprobs": {"seed": 4, "prompt_logprobs": 2},
    "stop": {**says("one two three"), "stop": ["two"]},
    "stop in the end": {**says("one two three"), "stop": "three"},
    "stop cut short": {**says("one two thr"), "stop": ["three"]},
    "stop token": {"temperature": 0, "logit_bias": {"70": 100}, "stop_token_ids": [70]},
    "characters": says("höhe 한국어 🍞 fin"),
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a", "b"]}}}},
    "regex": {"structured_outputs": {"regex": "[a-c]{3}-[0-9]{2}"}},
    "grammar": {"structured_outputs": {"grammar": 'start: "a" | "b" start'}},
    "required": {"tools": [WEATHER, CLOCK], "tool_choice": "required", "parallel_tool_calls": False},
    "named": {"tools": [WEATHER, CLOCK], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
    "auto with text": {"tools": [WEATHER], **says("no call")},
    "auto with a call": {"tools": [WEATHER], **says(FORM)},
    "auto with both": {"tools": [WEATHER], **says(f"Let me look. {FORM}\n{FORM}")},
    "auto, malformed": {"tools": [WEATHER], **says('<tool_call>\n{"name": }\n</tool_call>')},
}


@pytest.mark.parametrize("options", SAME.values(), ids=SAME)
def test_streaming_says_the_same(server: Running, options: dict[str, Any]) -> None:
    options = {"max_tokens": 40, "seed": 7, **options}
    whole = server.chat(**options)
    streamed = server.chat(**options, stream=True, stream_options={"include_usage": True})
    assert streamed["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert streamed["model"] == whole["model"] == "tiny"
    assert len(streamed["choices"]) == len(whole["choices"]) == options.get("n", 1)
    assert streamed.get("prompt_logprobs") == whole.get("prompt_logprobs")
    for a, b in zip(whole["choices"], streamed["choices"], strict=True):
        assert a["index"] == b["index"]
        assert a["finish_reason"] == b["finish_reason"]
        assert a["message"]["role"] == b["message"]["role"] == "assistant"
        assert (a["message"]["content"] or "") == (b["message"]["content"] or "")
        assert a.get("stop_reason") == b.get("stop_reason")
        assert (a["logprobs"] or {}).get("content") == b.get("logprobs", {}).get("content")
        assert [c["function"] for c in a["message"].get("tool_calls", [])] == [
            c["function"] for c in b["message"].get("tool_calls", [])
        ]


def test_the_response_is_whole(server: Running) -> None:
    answer = server.chat(**says("hello"), seed=1)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "hello"}
    assert answer["choices"][0]["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    timings = answer["timings"]
    assert timings["total_ms"] >= timings["ttft_ms"] >= timings["queue_ms"] >= 0


def test_length_is_a_reason(server: Running) -> None:
    answer = server.chat(max_completion_tokens=3, ignore_eos=True)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


def test_max_completion_tokens_wins_over_the_older_name(server: Running) -> None:
    assert server.chat(max_completion_tokens=2, max_tokens=9, ignore_eos=True)["usage"]["completion_tokens"] == 2


def test_stop_strings_are_not_shown(server: Running) -> None:
    choice = server.chat(**says("one two three"), stop=["three", "two"])["choices"][0]
    assert choice["message"]["content"] == "one "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "two")


def test_a_stop_token_is_named(server: Running) -> None:
    choice = server.chat(temperature=0, logit_bias={"70": 100}, stop_token_ids=[70])["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"], choice["message"]["content"]) == ("stop", 70, "")


def test_min_tokens_puts_off_the_end(server: Running) -> None:
    eager = {"temperature": 0, "logit_bias": {"70": 100}, "stop_token_ids": [70]}
    assert server.chat(**eager)["usage"]["completion_tokens"] == 1
    assert server.chat(**eager, min_tokens=6)["usage"]["completion_tokens"] == 7


def test_seeds_reproduce_and_differ(server: Running) -> None:
    def text(seed: int) -> str:
        return str(server.chat(seed=seed, max_tokens=30, temperature=1.0, ignore_eos=True)["choices"][0]["message"]["content"])

    assert text(11) == text(11)
    assert len({text(seed) for seed in range(-2, 3)}) == 5


def test_choices_of_a_seed_differ_and_reproduce(server: Running) -> None:
    def texts() -> list[str]:
        return [c["message"]["content"] for c in server.chat(seed=2, n=4, max_tokens=20, ignore_eos=True)["choices"]]

    first = texts()
    assert len(set(first)) == 4
    assert texts() == first


def test_logit_bias_decides(server: Running) -> None:
    answer = server.chat(logit_bias={"68": 100}, max_tokens=5)
    assert answer["choices"][0]["message"]["content"] == server.serving.tokenizer.decode([68] * 5)


def test_penalties_forbid_repeating(server: Running) -> None:
    biased = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, "logprobs": True, "logit_bias": {"68": 40, "69": 39}}

    def tokens(**penalties: float) -> str:
        return "".join(t["token"] for t in server.chat(**biased, **penalties)["choices"][0]["logprobs"]["content"])

    assert tokens() == "AAAAAA"
    assert set(tokens(presence_penalty=2)) == set(tokens(frequency_penalty=1)) == {"A", "B"}
    assert set(tokens(repetition_penalty=1.2)) == {"A", "B"}


def test_logprobs_have_openai_s_shape(server: Running) -> None:
    choice = server.chat(logprobs=True, top_logprobs=2, temperature=0, max_tokens=4, ignore_eos=True)["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == 4
    for token in content:
        assert set(token) == {"token", "logprob", "bytes", "top_logprobs"}
        assert [set(t) for t in token["top_logprobs"]] == [{"token", "logprob", "bytes"}] * 2
        assert token["logprob"] == token["top_logprobs"][0]["logprob"] <= 0  # greedy takes the best
    text = b"".join(bytes(t["bytes"]) for t in content).decode("utf-8", "replace")
    assert text == choice["message"]["content"]


def test_prompt_logprobs_cover_the_prompt(server: Running) -> None:
    answer = server.chat(prompt_logprobs=1, max_tokens=1)
    values = answer["prompt_logprobs"]
    assert len(values) == answer["usage"]["prompt_tokens"]
    assert values[0] is None
    assert all(1 <= len(v) <= 2 for v in values[1:])


def test_a_conversation_is_cached(server: Running) -> None:
    messages = [{"role": "system", "content": "cache me " * 20}, *USER]
    first, second = (server.chat(messages=messages, max_tokens=1, cache_salt="ours")["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] > 100
    other = server.chat(messages=messages, max_tokens=1, cache_salt="mine")["usage"]
    assert other["prompt_tokens_details"]["cached_tokens"] == 0


def test_choices_share_their_prompt(server: Running) -> None:
    before = server.stats().computed_tokens
    messages = [{"role": "user", "content": "share me " * 200}]
    usage = server.chat(messages=messages, n=2, max_tokens=1)["usage"]
    assert usage["completion_tokens"] == 2
    assert server.stats().computed_tokens - before < 1.2 * usage["prompt_tokens"]


def test_a_schema_is_kept(server: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
        "required": ["id", "ok"],
        "additionalProperties": False,
    }
    for seed in range(5):
        text = server.chat(
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}, seed=seed
        )["choices"][0]["message"]["content"]
        value = json.loads(text)
        assert set(value) == {"id", "ok"}
        assert 0 <= value["id"] <= 99
        assert isinstance(value["ok"], bool)


def test_json_object_mode_begins_an_object(server: Running) -> None:
    choice = server.chat(response_format={"type": "json_object"}, max_tokens=60, seed=1)["choices"][0]
    assert choice["message"]["content"].startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


def test_required_calls_one_of_the_tools(server: Running) -> None:
    names = set()
    for seed in range(8):
        choice = server.chat(tools=[WEATHER, CLOCK], tool_choice="required", parallel_tool_calls=False, seed=seed)["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        [call] = choice["message"]["tool_calls"]
        assert call["type"] == "function"
        names.add(call["function"]["name"])
        arguments = json.loads(call["function"]["arguments"])
        assert call["function"]["name"] == "get_time" or arguments["city"] in ("Rome", "Oslo")
    assert names == {"get_weather", "get_time"}


def test_a_named_tool_is_called(server: Running) -> None:
    choice = server.chat(tools=[WEATHER, CLOCK], tool_choice={"type": "function", "function": {"name": "get_time"}})["choices"][
        0
    ]
    assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["get_time"]


def test_without_parallel_calls_only_the_first_is_passed_on(server: Running) -> None:
    both = says(f"{FORM}\n{FORM}")
    assert len(server.chat(tools=[WEATHER], **both)["choices"][0]["message"]["tool_calls"]) == 2
    for stream in (False, True):
        choice = server.chat(tools=[WEATHER], parallel_tool_calls=False, stream=stream, **both)["choices"][0]
        assert len(choice["message"]["tool_calls"]) == 1
        assert choice["finish_reason"] == "tool_calls"


def test_tool_choice_none_leaves_text_alone(server: Running) -> None:
    message = server.chat(tools=[WEATHER], tool_choice="none", **says(FORM))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": FORM}


def test_a_tool_conversation_goes_on(server: Running) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome", "days": 1}'}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    assert server.chat(messages=messages, tools=[WEATHER], max_tokens=2)["usage"]["completion_tokens"] == 2


def test_parts_are_joined(server: Running) -> None:
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "something."}]
    a = server.chat(messages=[{"role": "user", "content": parts}], max_tokens=1)
    assert a["usage"]["prompt_tokens"] == server.chat(max_tokens=1)["usage"]["prompt_tokens"]


def test_usage_comes_only_when_asked(server: Running) -> None:
    assert "usage" not in server.chat(stream=True, max_tokens=2)
    answer = server.chat(stream=True, max_tokens=2, stream_options={"include_usage": True}, n=2)
    assert answer["usage"]["completion_tokens"] <= 4


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"stop_token_ids": [100000]}, "stop_token_ids"),
        ({"priority": 3}, "priority"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
    ],
)
def test_what_contradicts_is_refused(server: Running, options: dict[str, Any], param: str) -> None:
    response = server.post("/v1/chat/completions", {"messages": USER, **options})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "outputs",
    [
        {"json": {"type": "object", "unevaluatedProperties": False, "allOf": [{"$ref": "http://x/y"}]}},
        {"json": {"type": "nonsense"}},
        {"regex": "(unclosed"},
        {"grammar": "start: nowhere"},
        {"json": {"not": {}}},
    ],
)
def test_what_cannot_be_enforced_is_refused(server: Running, outputs: dict[str, Any]) -> None:
    response = server.post("/v1/chat/completions", {"messages": USER, "structured_outputs": outputs})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
