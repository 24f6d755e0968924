"""What a server says, made fit for a terminal. Clients choose the ids of their requests: one that holds an escape sequence must
not reach the terminal of whoever looks at the server."""

from __future__ import annotations

from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def plain(value: Any) -> Any:
    """A JSON value with every character that a terminal would act upon replaced, in keys too."""
    if isinstance(value, str):
        return value if value.isprintable() else "".join(c if c.isprintable() else REPLACEMENT for c in value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    return value
