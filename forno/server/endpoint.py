"""``Endpoint``: one line of the API table, from which both the routes and the OpenAPI document are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from forno.server.limits import App


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path. ``handler(serving, body, size)`` returns an ASGI response; ``size`` is the
    body's length in bytes, from which a handler tells what would hold up the event loop."""

    method: str
    path: str
    summary: str
    handler: Callable[..., Awaitable[App]]
    body: Any = None
    """Wire type of the JSON body, or None."""
    response: Any = None
    """Wire type of the JSON response; None for plain text."""
    errors: tuple[int, ...] = ()
    streams: bool = False
    """Whether ``stream: true`` turns the response into server-sent events."""
