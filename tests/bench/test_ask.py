"""Questions to a server: an answer, or an error that says what is wrong."""

from __future__ import annotations

import asyncio
import json
from unittest import mock

import pytest

from forno.bench import ask
from forno.errors import ConfigError, UnreachableError
from tests.bench import scripted
from tests.helpers.pages import Pages, serving


@pytest.mark.parametrize(
    "text", ["http://a:8", "http://a:8/", "http://a:8/v1", "http://a:8/v1/", "a:8", "a:8/v1"]
)  # fmt: skip
def test_addresses(text: str) -> None:
    assert ask.base_url(text) == "http://a:8"


def test_a_path_before_v1_is_kept() -> None:
    assert ask.base_url("https://host/openai/v1") == "https://host/openai"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions/", "/v1/models"])
def test_an_endpoint_of_the_server_is_taken_for_the_server(path: str) -> None:
    assert ask.base_url(f"https://host/openai{path}") == "https://host/openai"


@pytest.mark.parametrize("text", ["", "http://", "htp://a", "http://a:99999", "http://a:b", "http://[::1", "http://a b", "a:0"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="is not the URL of a server"):
        ask.base_url(text)


@pytest.mark.parametrize("text", ["http://user:pass@a", "http://a?key=pass", "http://a#pass"])
def test_no_address_holds_a_secret(text: str) -> None:
    with pytest.raises(ConfigError, match="--api-key") as caught:
        ask.base_url(text)
    assert "pass" not in str(caught.value).replace("password", "")


def test_an_answer_and_the_key() -> None:
    with serving(Pages({"/a": (200, "body")})) as pages:
        assert ask.get(pages.url + "/a") == b"body"
        assert "authorization" not in pages.headers
        assert ask.get(pages.url + "/a", "secret") == b"body"
        assert pages.headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (401, "", "wants an API key"),
        (404, "{}", "no forno server"),
        (404, json.dumps({"error": {"message": "no such request"}}), "^no such request$"),
        (500, "[1]", "answers 500"),
        (503, "[" * 100_000, "answers 503"),
    ],
)
def test_refusals(status: int, body: str, says: str) -> None:
    with serving(Pages({"/a": (status, body)})) as pages, pytest.raises(UnreachableError, match=says):
        ask.get(pages.url + "/a")


def test_a_body_without_end_is_not_read() -> None:
    endless, less = serving(Pages({"/a": (200, "12345")})), mock.patch.object(ask, "LIMIT", 4)
    with endless as pages, less, pytest.raises(UnreachableError, match="sends more than"):
        ask.get(pages.url + "/a")


@pytest.mark.parametrize("data", [b"junk\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"])
async def test_what_is_no_http(data: bytes) -> None:
    async with scripted.serving(lambda request: scripted.Send(data, close=True)) as server:
        with pytest.raises(UnreachableError):
            await asyncio.to_thread(ask.get, server.url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://", "http://[", "http://a b/"])
def test_nobody_there(url: str) -> None:
    with pytest.raises(UnreachableError):
        ask.get(url)
