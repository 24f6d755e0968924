"""Text completions: prompts of every form, echo, and the log-probabilities that evaluation harnesses read."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.server.harness import CONTEXT, Running

LONG_MESSAGE = [{"role": "user", "content": "word " * 100_000}]
SAME: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"seed": 3},
    "echo": {"seed": 3, "echo": True},
    "echo and logprobs": {"seed": 3, "echo": True, "logprobs": 2},
    "scoring": {"echo": True, "logprobs": 1, "max_tokens": 0},
    "logprobs": {"seed": 3, "logprobs": 3},
    "logprobs of the sampled": {"seed": 3, "logprobs": 0},
    "prompt logprobs": {"seed": 3, "prompt_logprobs": 1, "prompt": "the inner ring"},
    "of one token": {"seed": 3, "prompt_logprobs": 1, "echo": True, "logprobs": 1},
    "several": {"seed": 3, "n": 3, "echo": True},
    "several prompts": {"seed": 3, "prompt": ["one", "two", "one"], "n": 2},
    "ids": {"temperature": 0, "prompt": [40, 41, 42]},
    "lists of ids": {"temperature": 0, "prompt": [[40, 41, 42], [50]], "echo": True, "logprobs": 1},
    "stop": {"structured_outputs": {"choice": ["left stop right"]}, "stop": ["stop"]},
    "characters": {"structured_outputs": {"choice": ["höhe 한국어 🍞"]}},
}


@pytest.mark.parametrize("options", SAME.values(), ids=SAME)
def test_streaming_says_the_same(server: Running, options: dict[str, Any]) -> None:
    options = {"max_tokens": 20, **options}
    whole = server.complete(**options)
    streamed = server.complete(**options, stream=True, stream_options={"include_usage": True})
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert whole["usage"][key] == streamed["usage"][key]
    for a, b in zip(whole["choices"], streamed["choices"], strict=True):
        assert {k: v for k, v in a.items() if v is not None} == {k: v for k, v in b.items() if v is not None}


def test_choices_come_in_the_order_of_prompts(server: Running) -> None:
    answer = server.complete(prompt=["one", "two"], n=2, echo=True, max_tokens=1, seed=0)
    assert [c["text"][:3] for c in answer["choices"]] == ["one", "one", "two", "two"]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    one, two = (len(server.serving.tokenizer.encode(p)) for p in ("one", "two"))
    assert answer["usage"]["prompt_tokens"] == one + two
    assert answer["usage"]["completion_tokens"] == 4


def test_sixteen_tokens_by_default(server: Running) -> None:
    assert server.complete(ignore_eos=True)["usage"]["completion_tokens"] == 16


def test_text_and_its_ids_are_the_same_prompt(server: Running) -> None:
    text = "the inner ring"
    ids = server.serving.tokenizer.encode(text)
    a, b = (server.complete(prompt=p, temperature=0)["choices"][0]["text"] for p in (text, ids))
    assert a == b


def test_scoring_gives_each_token_its_probability(server: Running) -> None:
    """What lm-eval's ``local-completions`` does: echo the prompt with log-probabilities, generate nothing."""
    prompt = "the inner ring"
    ids = server.serving.tokenizer.encode(prompt)
    choice = server.complete(prompt=[ids], echo=True, logprobs=1, max_tokens=0, temperature=0)["choices"][0]
    assert choice["text"] == prompt
    assert choice["finish_reason"] == "length"
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == prompt
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    for token, value, top in zip(found["tokens"][1:], found["token_logprobs"][1:], found["top_logprobs"][1:], strict=True):
        assert math.isfinite(value)
        assert top[token] == value
        assert max(top.values()) >= value
    assert found["text_offset"] == [sum(map(len, found["tokens"][:i])) for i in range(len(ids))]


def test_a_prompt_of_one_token_can_be_scored(server: Running) -> None:
    found = server.complete(prompt=[[40]], echo=True, logprobs=1, max_tokens=1)["choices"][0]["logprobs"]
    assert len(found["tokens"]) == 2
    assert found["token_logprobs"][0] is None
    assert server.complete(prompt=[40], prompt_logprobs=1)["choices"][0]["prompt_logprobs"] == [None]


def test_scoring_agrees_with_generating(server: Running) -> None:
    """A token has the same log-probability as output and as echoed prompt."""
    ids = server.serving.tokenizer.encode("the inner ring")
    made = server.complete(prompt=ids, max_tokens=6, temperature=0, logprobs=0, ignore_eos=True)
    values = made["choices"][0]["logprobs"]["token_logprobs"]
    text_ids = []
    for token in server.complete(prompt=ids, max_tokens=6, temperature=0, logprobs=0, ignore_eos=True, echo=True)["choices"]:
        assert token["logprobs"]["token_logprobs"][len(ids) :] == values
        text_ids = token["logprobs"]["tokens"]
    assert len(text_ids) == len(ids) + 6


def test_scoring_takes_no_cached_shortcut(server: Running) -> None:
    prompt = "the inner ring " * 30
    server.complete(prompt=prompt, max_tokens=1)
    first, second = (server.complete(prompt=prompt, echo=True, logprobs=0, max_tokens=0) for _ in range(2))
    assert first["choices"][0]["logprobs"] == second["choices"][0]["logprobs"]
    assert len(first["choices"][0]["logprobs"]["tokens"]) == first["usage"]["prompt_tokens"]


def test_a_prompt_may_fill_the_context_if_nothing_is_generated(server: Running) -> None:
    full = [40] * CONTEXT
    assert server.complete(prompt=full, max_tokens=0, echo=True)["usage"]["prompt_tokens"] == CONTEXT
    assert server.complete(prompt=full[1:])["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("options", [{"prompt": [40] * CONTEXT}, {"prompt": [40] * 100, "max_tokens": CONTEXT}])
def test_too_long_names_both_lengths(server: Running, options: dict[str, Any]) -> None:
    response = server.post("/v1/completions", options)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert str(len(options["prompt"])) in error["message"]
    assert str(CONTEXT) in error["message"]


def test_a_text_that_cannot_fit_is_not_even_encoded(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(server.serving.tokenizer), "encode", None)
    for path, body in (
        ("/v1/completions", {"prompt": "word " * 100_000}),
        ("/v1/chat/completions", {"messages": LONG_MESSAGE}),
    ):
        response = server.post(path, body)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [100000]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 4096, "n": 2}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": []}, "tools"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_what_makes_no_sense_is_refused(server: Running, options: dict[str, Any], param: str) -> None:
    response = server.post("/v1/completions", {"prompt": "a", **options})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].split("[")[0] == param
