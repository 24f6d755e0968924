"""``Endpoint``: one line of the API table, from which both the routes and the OpenAPI document are made; and ``Call``: what a
handler is told of a request besides its body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from forno.errors import RequestError
from forno.server.limits import App
from forno.server.visit import Visit


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request, its body aside."""

    size: int
    """Bytes of its body, from which a handler tells what would hold up the event loop."""
    slo_class: str | None = None
    """Its ``x-slo-class`` header, unchecked."""
    query: str = ""
    """What follows the path's ``?``, undecoded."""
    path: Mapping[str, str] = field(default_factory=dict)
    """The path's parameters by name."""
    visit: Visit | None = None
    """Where its times are noted; None where nobody is interested."""

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """The query's only parameter. Raises ``RequestError`` for any other, and for what is no number within the bounds."""
        given = parse_qs(self.query, keep_blank_values=True)
        unknown = next((other for other in given if other != name), None)
        if unknown is not None:
            raise RequestError(f"unknown parameter {unknown!r}: this endpoint takes {name}", unknown)
        text = given.get(name, [str(default)])[-1]
        if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
            raise RequestError(f"{name} must be a number from {least} to {most}, got {text!r}", name)
        return int(text)


def call_of(scope: Mapping[str, Any], size: int, visit: Visit | None = None) -> Call:
    """The ``Call`` of an ASGI scope."""
    named = next((value for name, value in scope["headers"] if name == b"x-slo-class"), None)
    slo_class = None if named is None else named.decode("latin-1").strip()
    return Call(size, slo_class, scope["query_string"].decode("latin-1"), scope.get("path_params") or {}, visit)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path. ``handler(serving, body, call)`` returns an ASGI response."""

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
    query: Mapping[str, Any] = field(default_factory=dict)
    """Parameters after the path's ``?``, each optional: name to JSON schema."""
