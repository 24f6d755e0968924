"""What a client may ask its output to be: plain data, made by ``server`` and ``tools``, compiled by ``constraints``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["json_object", "json_schema", "regex", "grammar", "choice", "calls"]


@dataclass(frozen=True, slots=True)
class ForcedCall:
    """One way a tool call may be written: ``before``, JSON that fits ``schema``, ``after``."""

    before: str
    schema: Mapping[str, Any]
    after: str


@dataclass(frozen=True, slots=True)
class ForcedCalls:
    """One of ``calls``; with ``separator``, any number of them with that text between."""

    calls: tuple[ForcedCall, ...]
    separator: str | None = None


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """``kind`` and its ``value``: nothing for json_object; a schema (dict or bool); a regex that the whole output matches;
    a Lark or GBNF grammar; a list of texts; ``ForcedCalls``."""

    kind: Kind
    value: Any = None

    def key(self) -> str:
        """Equal for equal specs: what compiled constraints are cached by."""
        return self.kind + ":" + json.dumps(self.value, default=_plain, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, ForcedCalls):
        return [value.separator, [[call.before, dict(call.schema), call.after] for call in value.calls]]
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a constraint cannot hold a {type(value).__name__}")
