"""Models, tokenize and detokenize, health, version."""

from __future__ import annotations

from typing import Any

import pytest

from forno import __version__
from tests.helpers.tiny import CHAT_TEMPLATE
from tests.server.harness import CONTEXT, USER, Running
from tests.server.test_app import error_of


def test_models_lists_the_served_one(server: Running) -> None:
    answer = server.http.get("/v1/models").json()
    assert answer["object"] == "list"
    [model] = answer["data"]
    assert model["id"] == "tiny"
    assert model["object"] == "model"
    assert model["max_model_len"] == CONTEXT


def test_health_and_version(server: Running) -> None:
    assert server.http.get("/health").json() == {"status": "ok"}
    assert server.http.get("/version").json() == {"version": __version__}
    assert server.http.head("/health").status_code == 200


@pytest.mark.parametrize("text", ["the inner ring", "höhe 한국어 🍞", "<|im_start|>user\n", " "])
def test_text_to_tokens_and_back(server: Running, text: str) -> None:
    answer = server.post("/tokenize", {"prompt": text}).json()
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == CONTEXT
    assert answer["tokens"] == server.serving.tokenizer.encode(text)
    assert server.post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": text}


def test_a_conversation_is_tokenized_as_chat_sees_it(server: Running) -> None:
    count = server.post("/tokenize", {"messages": USER}).json()["count"]
    assert count == server.chat(max_tokens=1)["usage"]["prompt_tokens"]
    assert server.post("/tokenize", {"messages": USER, "add_generation_prompt": False}).json()["count"] < count


def test_the_tokenizer_introduces_itself(server: Running) -> None:
    info = server.http.get("/tokenizer_info").json()
    assert (info["bos_token"], info["eos_token"], info["pad_token"]) == ("<|im_start|>", "<|im_end|>", None)
    assert info["chat_template"] == CHAT_TEMPLATE


def test_long_texts_too(server: Running) -> None:
    text = "the inner ring " * 20_000
    assert server.post("/tokenize", {"prompt": text}).json()["tokens"] == server.serving.tokenizer.encode(text)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": USER}, "prompt"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/tokenize", {"text": "a"}, "text"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [500]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_what_is_wrong_is_named(server: Running, path: str, body: dict[str, Any], param: str) -> None:
    assert error_of(server.post(path, body), 400)["param"].split("[")[0] == param
