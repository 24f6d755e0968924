"""API keys and the size of bodies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from forno.errors import ConfigError
from forno.server.limits import load_keys
from tests.server.harness import USER, Running, running
from tests.server.test_app import error_of

LIMIT = 4096


@pytest.fixture(scope="module")
def locked(model_path: Path) -> Iterator[Running]:
    with running(model_path, keys=(b"first", "zweiter-schlüssel".encode()), max_body_bytes=LIMIT) as server:
        yield server


def test_no_key_no_answer(locked: Running) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer"}, {"authorization": "first"}):
        response = locked.http.get("/v1/models", headers=headers)
        error = error_of(response, 401)
        assert error["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    error_of(locked.post("/v1/chat/completions", {"messages": USER}), 401)
    error_of(locked.http.get("/v1/nothing"), 401)


@pytest.mark.parametrize("key", [b"first", "zweiter-schlüssel".encode()])
def test_each_key_opens(locked: Running, key: bytes) -> None:
    for scheme in (b"Bearer ", b"bearer  "):
        assert locked.http.get("/v1/models", headers={b"authorization": scheme + key}).status_code == 200


def test_a_part_of_a_key_does_not(locked: Running) -> None:
    for key in ("firs", "first ,", "firstfirst", "First"):
        error_of(locked.http.get("/v1/models", headers={"authorization": f"Bearer {key}"}), 401)


def test_probes_need_no_key(locked: Running) -> None:
    for path in ("/health", "/version", "/metrics", "/docs", "/openapi.json"):
        assert locked.http.get(path).status_code == 200


def test_keys_come_from_flag_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nfile-1\n\n  file-2  \n")
    assert load_keys("a, b", str(file), "env") == (b"a", b"b", b"env", b"file-1", b"file-2")
    assert load_keys("", "", "") == ()


def test_a_source_without_a_key_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "keys"
    empty.write_text("# none yet\n")
    for flag, file, env in ((" , ", "", ""), ("", str(empty), ""), ("", "", " ")):
        with pytest.raises(ConfigError, match="holds no key"):
            load_keys(flag, file, env)
    with pytest.raises(ConfigError, match="cannot read"):
        load_keys("", str(tmp_path / "missing"), "")


HEADERS = {"authorization": "Bearer first"}


def test_a_huge_body_is_refused_by_its_length(locked: Running) -> None:
    response = locked.http.post("/v1/completions", content=b"x" * (LIMIT + 1), headers=HEADERS)
    assert "--max-body-bytes" in error_of(response, 413)["message"]
    assert response.headers["connection"] == "close"


def test_a_huge_body_is_refused_as_it_arrives(locked: Running) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(100_000):  # far more than is ever read
            yield b" " * 1024

    try:
        response = locked.http.post("/v1/completions", content=endless(), headers=HEADERS)
    except httpx.TransportError:
        return  # the server closed the connection before all was sent
    error_of(response, 413)


def test_a_body_of_just_the_limit_is_read(locked: Running) -> None:
    body = b'{"model": "tiny", "prompt": "a", "max_tokens": 1}'
    for content in (body + b" " * (LIMIT - len(body)), iter([body, b" " * (LIMIT - len(body))])):
        assert locked.http.post("/v1/completions", content=content, headers=HEADERS).status_code == 200


def test_lengths_that_are_none(locked: Running) -> None:
    import socket

    host, port = locked.http.base_url.host, locked.http.base_url.port
    for length in (b"-1", b"9" * 5000, b"abc"):
        with socket.create_connection((host, port), timeout=10) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer first\r\nContent-Length: "
                + length
                + b"\r\n\r\n"
            )
            assert connection.recv(4096).split()[1] in (b"400", b"413")
    assert locked.http.get("/health").status_code == 200
