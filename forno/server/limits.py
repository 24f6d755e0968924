"""ASGI middleware that answers before a route is reached: the API key and the size of the body."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, ClassVar

from forno.env import API_KEY
from forno.errors import ConfigError
from forno.server.errors import BodyTooLargeError, HttpError, encode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/health", "/version", "/metrics", "/docs", "/openapi.json"})
"""Paths that probes, scrapers and browsers reach without a key; they reveal nothing of a request."""

MAX_DIGITS = 18
"""Of a declared length: Python refuses to parse absurdly long numbers."""


def load_keys(flag: str, file: str, env: str) -> tuple[bytes, ...]:
    """All accepted keys: from the flag (comma-separated), the file (one per line, ``#`` comments) and the environment.

    Raises ``ConfigError`` if a source was given but no key is in any: the server would be open by mistake.
    """
    keys = [*flag.split(","), env]
    if file:
        try:
            lines = Path(file).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read --api-key-file {file}: {error}") from error
        keys += [line for line in lines if not line.lstrip().startswith("#")]
    found = tuple(k.strip().encode() for k in keys if k.strip())
    if not found and (flag or file or env):
        source = "--api-key" if flag else f"--api-key-file {file}" if file else API_KEY.name
        raise ConfigError(f"{source} holds no key: the server would be open to everyone; add one or leave it out")
    return found


async def reject(send: Send, error: HttpError) -> None:
    """Send an error response for a request whose body may not have been read."""
    body = encode(error.body)
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    head += [(k.encode(), v.encode()) for k, v in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": head})
    await send({"type": "http.response.body", "body": body})


class UnauthorizedError(HttpError):
    headers: ClassVar[Mapping[str, str]] = {"www-authenticate": "Bearer"}

    def __init__(self) -> None:
        message = "missing or unknown API key: send `Authorization: Bearer KEY`"
        super().__init__(401, message, "authentication_error", code="invalid_api_key")


class RequireKey:
    """401 unless the bearer token is one of the keys. All keys are compared, by their digests and in constant time, so
    that the time taken says nothing about a key, not even its length."""

    def __init__(self, app: App, keys: tuple[bytes, ...]) -> None:
        self.app, self.keys = app, tuple(map(_digest, keys))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.keys and scope["path"] not in OPEN_PATHS and not self._allowed(scope):
            await reject(send, UnauthorizedError())
            return
        await self.app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        sent = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
        token = _digest(sent[7:].strip() if sent[:7].lower() == b"bearer " else b"")
        matches = [hmac.compare_digest(token, key) for key in self.keys]
        return any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class LimitBody:
    """413 as soon as a body is known to exceed ``limit`` bytes, by its length header or while it arrives."""

    def __init__(self, app: App, limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
        if not declared.isdigit() or len(declared) > MAX_DIGITS or int(declared) > self.limit:
            await reject(send, BodyTooLargeError(self.limit))
            return
        seen = 0

        async def limited() -> MutableMapping[str, Any]:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.limit:
                raise BodyTooLargeError(self.limit)
            return message

        await self.app(scope, limited, send)
