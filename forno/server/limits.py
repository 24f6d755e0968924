"""ASGI middleware that answers before a route is reached: the API key and the size of the body."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any

from forno.errors import ConfigError
from forno.server.errors import HttpError, encode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/health", "/version", "/metrics"})
"""Paths that probes and scrapers reach without a key; they reveal nothing of a request."""


def load_keys(flag: str, file: str, env: str) -> tuple[bytes, ...]:
    """All accepted keys: from the flag (comma-separated), the file (one per line, ``#`` comments) and the environment."""
    keys = [*flag.split(","), env]
    if file:
        try:
            lines = Path(file).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read --api-key-file {file}: {error}") from error
        keys += [line for line in lines if not line.lstrip().startswith("#")]
    found = tuple(k.strip().encode() for k in keys if k.strip())
    if file and not found:
        raise ConfigError(f"--api-key-file {file} holds no key: the server would be open to everyone; add one or drop the flag")
    return found


async def reject(send: Send, error: HttpError, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send an error response for a request whose body may not have been read."""
    body = encode(error.body)
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": error.status, "headers": head})
    await send({"type": "http.response.body", "body": body})


class RequireKey:
    """401 unless the bearer token is one of the keys. Each key is compared in constant time, and all are compared."""

    def __init__(self, app: App, keys: tuple[bytes, ...]) -> None:
        self.app, self.keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.keys and scope["path"] not in OPEN_PATHS and not self._allowed(scope):
            message = "missing or unknown API key: send `Authorization: Bearer KEY`"
            error = HttpError(401, message, "authentication_error", code="invalid_api_key")
            await reject(send, error, [(b"www-authenticate", b"Bearer")])
            return
        await self.app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        sent = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
        token = sent[7:].strip() if sent[:7].lower() == b"bearer " else b""
        matches = [hmac.compare_digest(token, key) for key in self.keys]
        return any(matches)


class LimitBody:
    """413 as soon as a body is known to exceed ``limit`` bytes, by its length header or while it arrives."""

    def __init__(self, app: App, limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
        if not declared.isdigit() or int(declared) > self.limit:
            await reject(send, self._error(), [(b"connection", b"close")])
            return
        seen = 0

        async def limited() -> MutableMapping[str, Any]:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.limit:
                raise self._error()
            return message

        await self.app(scope, limited, send)

    def _error(self) -> HttpError:
        return HttpError(413, f"the body exceeds {self.limit} bytes (--max-body-bytes)", "invalid_request_error")
