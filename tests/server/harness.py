"""A real server on a tiny random model, in a thread of the test process, and what tests ask of its answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from forno import env
from forno.config import (
    CacheConfig,
    CpuConfig,
    EngineConfig,
    ModelConfig,
    ObserveConfig,
    SchedulerConfig,
    ServerConfig,
    SpeculativeConfig,
)
from forno.kernels.cpu import ceilings
from forno.program.ceiling import Ceiling
from forno.server.app import build_app
from forno.server.build import open_serving
from forno.server.main import bind
from forno.server.serve import Server
from forno.server.serving import Serving
from tests.helpers.steady_runner import SteadyRunner

CEILING = Ceiling(int8=2e12, bf16=1e12, fp32=5e11, dram=5e10, l3=2e11)
"""Of every machine that a test runs on: nothing is measured."""
CONTEXT = 16384
LONG = {"max_tokens": 16000, "ignore_eos": True}
"""Sampling of a request that runs for seconds: long enough to be cancelled, expire or be waited for."""
USER = [{"role": "user", "content": "Say something."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
}


class Running:
    """One server, its address, and a view of its engine."""

    def __init__(self, serving: Serving, server: Server, url: str) -> None:
        self.serving, self.server, self.url = serving, server, url
        self.http = httpx.Client(base_url=url, timeout=60, limits=httpx.Limits(max_connections=None))

    @property
    def model(self) -> str:
        return self.serving.model

    def post(self, path: str, body: dict[str, Any], **options: Any) -> httpx.Response:
        """POST ``body``, with the served model's name unless it names one."""
        return self.http.post(path, json={"model": self.model, **body}, **options)

    def chat(self, **body: Any) -> dict[str, Any]:
        """A whole chat completion; streamed ones are put together (see ``joined``)."""
        return self._complete("/v1/chat/completions", {"messages": USER, **body})

    def complete(self, **body: Any) -> dict[str, Any]:
        """A whole text completion; streamed ones are put together."""
        return self._complete("/v1/completions", {"prompt": "the", **body})

    def _complete(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        if not body.get("stream"):
            return response.json()
        chunks = events(response.text)
        for chunk in chunks:
            assert "error" not in chunk, chunk
        return joined(chunks)

    @contextmanager
    def streaming(
        self, path: str = "/v1/completions", headers: dict[str, str] | None = None, **body: Any
    ) -> Iterator[Iterator[str]]:
        """Lines of a stream whose first event has come; leaving closes the connection."""
        body = {"model": self.model, "stream": True, **({"prompt": "the"} if path == "/v1/completions" else {}), **body}
        with self.http.stream("POST", path, json=body, headers=headers) as response:
            assert response.status_code == 200, response.read()
            lines = response.iter_lines()
            assert next(lines).startswith("data: {")
            yield lines

    @contextmanager
    def streaming_later(self, **body: Any) -> Iterator[None]:
        """A stream whose first event may be long in coming; leaving closes the connection."""
        with socket.create_connection((self.http.base_url.host, self.http.base_url.port)) as connection:
            content = json.dumps({"model": self.model, "stream": True, "prompt": "the", **body}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
            connection.sendall(head.encode() + content)
            yield

    def wait_idle(self) -> None:
        """Until no request is live; then every block must be free."""
        eventually(lambda: self.stats().running + self.stats().waiting == 0)
        eventually(lambda: not self.serving.engine._streams)
        assert self.stats().kv_usage == 0.0
        self.serving.engine.engine.check_integrity()

    def stats(self) -> Any:
        return self.serving.engine.stats()

    def terminate(self) -> None:
        """What SIGTERM does."""
        self.server.handle_exit(signal.SIGTERM, None)


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for what another thread is about to do. The limit is only for a test that fails."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


@contextmanager
def running(
    model: Path,
    scheduler: SchedulerConfig | None = None,
    keys: tuple[bytes, ...] = (),
    blocks: int = 1200,
    threads: int = 1,
    speculative: SpeculativeConfig | None = None,
    record: bool = True,
    cache: CacheConfig | None = None,
    **server: Any,
) -> Iterator[Running]:
    """Serve ``model`` on a free loopback port, with the engine's integrity checked after every step."""
    config = EngineConfig(
        model=ModelConfig(model=str(model)),
        cpu=CpuConfig(threads=threads),
        cache=cache or CacheConfig(num_blocks_override=blocks),
        scheduler=scheduler or SchedulerConfig(),
        speculative=speculative or SpeculativeConfig(),
        observe=ObserveConfig(record=record),
    )
    settings = ServerConfig(port=0, **server)
    with mock.patch.dict(os.environ, {env.DEBUG.name: "1"}), mock.patch.object(ceilings, "known", return_value=CEILING):
        serving, _ = open_serving(config, settings)
    serving.engine.engine.runner = SteadyRunner(serving.engine.engine.runner)
    listener = bind(settings)
    up = threading.Event()
    front = Server(serving, build_app(serving, keys), settings, up.set)
    thread = threading.Thread(target=lambda: asyncio.run(front.serve_on(listener)))
    thread.start()
    try:
        assert up.wait(30)
        yield Running(serving, front, f"http://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        front.force_exit = front.should_exit = True
        thread.join()
        listener.close()
    assert serving.engine._failure is None


def events(text: str) -> list[dict[str, Any]]:
    """The JSON objects of a stream, which must end in [DONE]."""
    lines = [line for line in text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines), text
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream's chunks as the response that would have come without ``stream``."""
    whole: dict[str, Any] = {"choices": {}}
    for chunk in chunks:
        whole |= {k: v for k, v in chunk.items() if k not in ("choices", "object")}
        for part in chunk["choices"]:
            _join_choice(whole["choices"].setdefault(part["index"], {"index": part["index"]}), part)
    whole["choices"] = [whole["choices"][i] for i in sorted(whole["choices"])]
    return whole


def _join_choice(choice: dict[str, Any], part: dict[str, Any]) -> None:
    if "text" in part:
        choice["text"] = choice.get("text", "") + part["text"]
    if "delta" in part:
        _join_message(choice.setdefault("message", {"content": None}), part["delta"])
    for name in ("finish_reason", "stop_reason", "prompt_logprobs"):
        if part.get(name) is not None:
            assert name not in choice, f"{name} came twice"
            choice[name] = part[name]
    for name, values in (part.get("logprobs") or {}).items():
        known = choice.setdefault("logprobs", {})
        known[name] = None if values is None else known.get(name, []) + values


def _join_message(message: dict[str, Any], delta: dict[str, Any]) -> None:
    if "role" in delta:
        assert "role" not in message, "the role came twice"
        message["role"] = delta["role"]
    if delta.get("content"):
        message["content"] = (message["content"] or "") + delta["content"]
    for call in delta.get("tool_calls", ()):
        calls = message.setdefault("tool_calls", [])
        if "id" in call:
            assert call["index"] == len(calls)
            calls.append({"id": call["id"], "type": call["type"], "function": {**call["function"]}})
        else:
            calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
