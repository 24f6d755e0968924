"""``forno explain``: where a request's time went, asked from a running server; ``explain_view`` draws."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any
from urllib.parse import quote

from forno import env
from forno.bench.ask import base_url, get
from forno.errors import UnreachableError
from forno.tools.plain import plain

TIMEOUT = 30.0
"""A list of requests is worked out one by one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "id", nargs="?", default="", metavar="ID", help="A response's id or its beginning; without: the latest requests."
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="The server (default: %(default)s).")
    parser.add_argument("--count", type=int, default=20, help="Requests in the list (default: %(default)s).")
    parser.add_argument("--json", action="store_true", help="Print what the server says, as JSON.")
    parser.add_argument("--api-key", default="", metavar="KEY", help="The server's key; default: $FORNO_API_KEY.")


def run(args: argparse.Namespace) -> int:
    """Print the explanation, or the list; 0."""
    id = args.id.removesuffix("…")  # as it was copied from a list
    path = f"/explain/{quote(id, safe='')}" if id else f"/explain?count={args.count}"
    found = ask(base_url(args.url) + path, args.api_key or env.API_KEY.get())
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    found = plain(found)
    from forno.tools.explain_view import request_lines, request_table

    width = _width()
    if not args.id:
        _print(request_table(found, width))
        return 0
    for i, request in enumerate(found["requests"]):
        _print([*([()] if i else []), *request_lines(request, width)])
    return 0


def ask(url: str, api_key: str) -> Any:
    """The JSON at ``url``. Raises ``UnreachableError``."""
    try:
        return json.loads(get(url, api_key, TIMEOUT))
    except (ValueError, RecursionError) as error:
        raise UnreachableError(f"{url} sends no JSON: {error}") from error


def _width() -> int:
    from shutil import get_terminal_size

    return max(60, min(get_terminal_size((100, 24)).columns, 140))


def _print(lines: Any) -> None:
    """With colors on a terminal where rich is installed; else plain text."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:
            pass
        else:
            console = Console(highlight=False, width=_width())
            for line in lines:
                console.print(Text.assemble(*line), soft_wrap=True)
            return
    for line in lines:
        print("".join(piece if isinstance(piece, str) else piece[0] for piece in line).rstrip())
