"""What is found out about a server before a load: on servers that lack, refuse and misbehave."""

from __future__ import annotations

from typing import Any

import pytest

from forno.bench.client import Target, open_session
from forno.bench.probe import counter, describe, find_model, settle
from forno.bench.workload import Call
from forno.errors import ConfigError
from tests.bench.scripted import ANSWER, DONE, FINISH, Request, Script, Send, delta, piece, reply, serving, stream, usage, whole

CALL = Call(2, ({"role": "user", "content": "What is an oven?"},))
FIELDS = {"temperature": 0.0, "ignore_eos": True, "cache_salt": "x"}


async def model_of(script: Script) -> str:
    async with serving(script) as server, open_session(Target(server.url, "")) as session:
        return await find_model(session, server.url)


async def test_the_only_model() -> None:
    assert await model_of(whole) == "tiny"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"data": [{"id": "a"}, {"id": "b"}]}, "serves a, b: name one with --model"),
        ({"data": []}, "does not say which model"),
        ({"data": [{"id": 7}, "x", None]}, "does not say which model"),
        ([1], "does not say which model"),
        (b"<html>", "does not say which model"),
        ({"data": 5}, "no list of models"),
        ({"data": {"id": "a"}}, "no list of models"),
    ],
)
async def test_no_only_model(body: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await model_of(lambda request: Send(reply(body)))


async def test_no_api_at_this_address() -> None:
    with pytest.raises(ConfigError, match="no OpenAI API at"):
        await model_of(lambda request: Send(reply({"error": "x"}, "404 Not Found")))


async def test_a_redirection_is_named_not_followed() -> None:
    head = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: https://elsewhere/v1/models\r\ncontent-length: 0\r\n\r\n"
    with pytest.raises(ConfigError, match=r"307 redirects to https://elsewhere"):
        await model_of(lambda request: Send(head))


@pytest.mark.parametrize("data", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, b""])
async def test_what_is_no_http(data: bytes) -> None:
    with pytest.raises(ConfigError, match="no answer from http"):
        await model_of(lambda request: Send(data, close=True))


async def test_a_body_without_end_is_read_so_far_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forno.bench.probe.MAX_BODY", 1000)
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    with pytest.raises(ConfigError, match="no list of models"):
        await model_of(lambda request: Send(head + piece(b"x" * 2000), hang=True))


async def test_nobody_listens() -> None:
    async with serving() as server:
        url = server.url
    async with open_session(Target(url, "")) as session:
        with pytest.raises(ConfigError, match=r"no answer from .*: Connect.*; is a server running there") as caught:
            await find_model(session, url)
        assert "ssl" not in str(caught.value)
        assert await describe(session, url) == {}


async def test_a_server_says_its_version() -> None:
    async with serving(lambda r: Send(reply({"version": "1"}))) as server, open_session(Target(server.url, "")) as session:
        assert await describe(session, server.url) == {"version": "1"}


async def settled(script: Script) -> tuple[Target, list[str]]:
    async with serving(script) as server:
        return await settle(Target(server.url, "tiny", fields=FIELDS), CALL)


async def test_a_server_that_takes_everything() -> None:
    target, problems = await settled(whole)
    assert (target.include_usage, target.usage_promised, dict(target.fields), problems) == (True, True, FIELDS, [])


async def test_fields_that_are_refused_are_left_out_and_told() -> None:
    """One refusal after the other, each naming a field."""

    def strict(request: Request) -> Send:
        for name in ("ignore_eos", "stream_options", "cache_salt"):
            if name in request.body:
                return Send(reply({"error": {"message": f"unknown field {name}"}}, "400 Bad Request"))
        return Send(stream(delta("a"), FINISH, DONE))

    target, problems = await settled(strict)
    assert (target.include_usage, target.usage_promised, dict(target.fields)) == (False, False, {"temperature": 0.0})
    assert [problem.split(":")[0] for problem in problems] == [
        "the server refuses ignore_eos",
        "the server refuses stream_options",
        "the server refuses cache_salt",
        "the server sends no usage",
    ]


async def test_a_server_that_ignores_what_it_does_not_know() -> None:
    target, problems = await settled(lambda request: Send(stream(delta("a"), FINISH, DONE)))
    assert (target.include_usage, target.usage_promised) == (True, False)
    assert problems == ["the server sends no usage: chunks are counted as tokens, and prompt tokens are not known"]


async def test_an_empty_answer_to_the_probe_is_no_reason_to_stop() -> None:
    assert (await settled(lambda request: Send(stream(FINISH, usage(), DONE))))[1] == []


@pytest.mark.parametrize(
    ("send", "message"),
    [
        (Send(reply({"error": "no such model"}, "404 Not Found")), "does not answer .status.: 404 Not Found: no such model"),
        (Send(reply({"error": "temperature"}, "400 Bad Request")), "does not answer .status.: 400"),
        (Send(reply({"error": "key"}, "401 Unauthorized")), "401 Unauthorized: key"),
        (Send(stream(*ANSWER[:1])), "does not answer .bad_stream."),
        (Send(close=True), "does not answer .dropped."),
    ],
)
async def test_a_server_that_cannot_be_measured(send: Send, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await settled(lambda request: send)


async def count_with(script: Script, **target: Any) -> tuple[int, list[str]]:
    """Tokens of three words, counted twice; the second time's paths."""
    async with serving(script) as server:
        aim = Target(server.url, "tiny", **target)
        async with open_session(aim) as session:
            count = counter(session, aim)
            first = await count("one two three")
            seen = len(server.requests)
            assert await count("one two three") == first
            return first, [request.path for request in server.requests[seen:]]


async def test_counting_by_the_tokenizer() -> None:
    assert await count_with(whole) == (8, ["/tokenize"])
    assert await count_with(whole, completions=True) == (8, ["/tokenize"])


@pytest.mark.parametrize(("completions", "path"), [(False, "/v1/chat/completions"), (True, "/v1/completions")])
async def test_counting_by_usage(completions: bool, path: str) -> None:
    def script(request: Request) -> Send:
        if request.path == path:
            assert (request.body["max_tokens"], "stream" in request.body) == (1, False)
            return Send(reply({"usage": {"prompt_tokens": 9}}))
        return Send(reply({"tokens": [1, 2]}))

    assert await count_with(script, completions=completions) == (9, [path])


@pytest.mark.parametrize("body", [{"usage": None}, {"usage": {"prompt_tokens": "9"}}, {"error": "no"}, [], b"<html>"])
async def test_a_server_that_cannot_count(body: Any) -> None:
    with pytest.raises(ConfigError, match="does not tell how many tokens"):
        await count_with(lambda request: Send(reply(body)))
