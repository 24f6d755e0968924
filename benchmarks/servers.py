"""A server of any engine as a child process: start it, time its first token, load it, stop it.

Knows the OpenAI API and signals, no engine.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from benchmarks import processes

MODEL = "m"
"""The name under which every engine is asked for its only model."""
START_LIMIT, LOAD_LIMIT, POLL = 300.0, 600.0, 0.005
"""Seconds that a server may take to answer and a load to be answered, and between two tries to reach a server."""


class ServerError(RuntimeError):
    """A server did not start, or answered with an error; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    started: float
    """``time.perf_counter()`` when the process was started."""
    log: IO[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def first_token(self, limit: float = START_LIMIT) -> float:
        """Seconds from the start of the process to the first streamed text, asking until it answers."""
        while time.perf_counter() - self.started < limit:
            if self.process.poll() is not None:
                raise ServerError(f"the server ended with status {self.process.returncode}:\n{self.tail()}")
            try:
                if ask_one_token(self.port):
                    return time.perf_counter() - self.started
            except OSError:  # not listening yet
                pass
            time.sleep(POLL)
        raise ServerError(f"the server did not answer within {limit:g} s:\n{self.tail()}")

    def tail(self) -> str:
        return processes.tail(self.log)


@contextmanager
def running(command: Sequence[str], port: int) -> Iterator[Server]:
    """Start ``command``; on the way out end it and everything that it started."""
    with tempfile.TemporaryFile() as log:
        started = time.perf_counter()
        with processes.child(command, log, log) as process:
            yield Server(process, port, started, log)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def ask_one_token(port: int) -> bool:
    """Whether a streamed chat of one token gave text; False while the server says that it is loading (503).

    Raises ``OSError`` if nothing listens and ``ServerError`` for any other answer.
    """
    messages = [{"role": "user", "content": "Hello!"}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 1, "temperature": 0, "stream": True, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_LIMIT)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status == 503:
            return False
        if response.status != 200:
            raise ServerError(f"the server answered {response.status}: {response.read()[:500].decode(errors='replace')}")
        return any(_has_text(line) for line in response)
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


def _has_text(line: bytes) -> bool:
    data = line.removeprefix(b"data:").strip()
    if not line.startswith(b"data:") or data == b"[DONE]":
        return False
    return any((choice.get("delta") or {}).get("content") for choice in json.loads(data).get("choices") or [])


def load(url: str, workload: str, clients: int, requests: int, max_tokens: int, seed: int) -> dict[str, Any]:
    """Run ``benchmarks.loadgen`` in a process of its own; its line. Any failed request raises ``ServerError``."""
    options = {"--url": url, "--model": MODEL, "--workload": workload, "-c": clients, "-n": requests}
    options |= {"--max-tokens": max_tokens, "--seed": seed}
    command = [sys.executable, "-m", "benchmarks.loadgen", *processes.as_flags(options)]
    try:
        line: dict[str, Any] = json.loads(processes.output(command, limit=LOAD_LIMIT).splitlines()[-1])
    except processes.ChildError as error:
        raise ServerError(f"the load on {url} failed: {error}") from error
    if line["err"]:
        raise ServerError(f"the load on {url} failed: {line}")
    return line
