"""One question to a server, answered whole: for tools that ask now and then. It knows HTTP, no engine and no load."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException

from forno.errors import ConfigError, UnreachableError

TIMEOUT = 10.0
LIMIT = 64 << 20
"""Bytes of an answer."""
HINT = "is a server running there (--url)?"
"""What to ask oneself first if there is no answer."""


def base_url(text: str) -> str:
    """A server's URL without ``/v1``, an endpoint's path and trailing slashes; ``http://`` is added where no scheme is given.

    Raises ``ConfigError`` for what is no such URL, and for one with a password, which would stand in result files.
    """
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or any(c.isspace() for c in url):
        raise ConfigError(f"{text!r} is not the URL of a server: write one such as http://127.0.0.1:8000")
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError("a server's URL has no password, query or fragment: a key goes into --api-key")
    for end in ("/chat/completions", "/completions", "/models", "/v1"):
        url = url.rstrip("/").removesuffix(end)
    return url.rstrip("/")


def get(url: str, api_key: str = "", timeout: float = TIMEOUT) -> bytes:
    """The body at ``url``. Raises ``UnreachableError`` with what the server says, or why there is no answer."""
    try:
        request = urllib.request.Request(url, headers={"authorization": f"Bearer {api_key}"} if api_key else {})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            body, missing = bytes(response.read(LIMIT + 1)), response.length
    except urllib.error.HTTPError as error:
        raise UnreachableError(_refusal(url, error)) from error
    except (OSError, ValueError) as error:
        raise UnreachableError(f"no answer from {url}: {getattr(error, 'reason', None) or error}; {HINT}") from error
    except HTTPException as error:
        raise UnreachableError(f"{url} sent no HTTP that can be read: {error!r}") from error
    if len(body) > LIMIT:
        raise UnreachableError(f"{url} sends more than {LIMIT >> 20} MiB")
    if missing:
        raise UnreachableError(f"{url} broke off its answer {missing} bytes before the end")
    return body


def _refusal(url: str, error: urllib.error.HTTPError) -> str:
    if error.code == 401:
        return f"{url} wants an API key: give --api-key or set FORNO_API_KEY"
    try:
        return str(json.loads(error.read(LIMIT))["error"]["message"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
        pass
    if error.code == 404:
        return f"{url} is not there: it is no forno server, or an older one"
    return f"{url} answers {error.code} {error.reason}"
