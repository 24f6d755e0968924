"""Why a prompt was found in the prefix cache as far as it was, and no further."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Miss(StrEnum):
    """Why a prompt's look-up in the prefix cache ended where it did."""

    NONE = "none"
    """Everything that can be found was found: the last token is always computed."""
    NEVER_SEEN = "never_seen"
    """No request began like this one, not even with its first tokens."""
    EVICTED = "evicted"
    """The next block was computed once, and overwritten since."""
    SALT = "salt"
    """The next block is cached for another ``cache_salt`` only."""
    SHORT = "short"
    """The prompt is shorter than one block."""
    DIVERGED = "diverged"
    """Others began alike, and went on differently from a token on."""
    DISABLED = "disabled"
    """Prefix caching is off, or the request needs every prompt position's logits."""


@dataclass(slots=True)
class Lookup:
    """One look-up in the prefix cache."""

    matched: int
    """Leading prompt tokens found: also the position of the first token that was not."""
    reason: Miss
