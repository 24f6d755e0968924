"""Which JSON Schemas we can enforce to the letter: a keyword outside this list is refused by name, never ignored.

llguidance itself refuses the keywords it knows and does not implement, but takes unknown ones for annotations; and it
recurses natively, so depth is bounded here before it sees a schema. This module knows no tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from forno.errors import ConstraintError

MAX_CHARACTERS = 128 << 10
MAX_DEPTH = 32
MAX_PATH = 512
"""Nesting of the schema plus that of everything it refers to: as deep as following references can get."""

_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "$comment", "$schema", "$id", "deprecated", "readOnly", "writeOnly")
)
_LIMITS = frozenset(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "maximum"))
_NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_VALUES = frozenset(("type", "enum", "const", "required", "pattern", "format", "$ref"))
_ONE = frozenset(("items", "additionalProperties"))
_MANY = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions"))
SUPPORTED = _LIMITS | _NUMBERS | _VALUES | _ONE | _MANY | _NAMED


def check(schema: Any, where: str = "schema") -> None:
    """Raises ``ConstraintError``, naming the place and the keyword, unless every keyword in ``schema`` can be enforced."""
    try:
        size = len(json.dumps(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"{where} is not JSON: {error}", "response_format") from error
    if size > MAX_CHARACTERS:
        raise ConstraintError(f"{where} has {size} characters; at most {MAX_CHARACTERS} are supported", "response_format")
    depth = _walk(schema, where, 0)
    targets = {reference: _resolve(schema, reference, where) for reference in _references(schema)}
    for reference, target in targets.items():  # it may lie where no schema is looked for, as in an example
        _walk(target, f"{where}({reference})", 0 if target is schema else 1)
    path = depth + sum(_nesting(target) for target in targets.values())
    if path > MAX_PATH:
        raise ConstraintError(
            f"{where} and what it refers to nest {path} deep altogether; at most {MAX_PATH} is supported", "response_format"
        )


def _fail(message: str) -> ConstraintError:
    return ConstraintError(message, "response_format")


def _walk(schema: Any, where: str, depth: int) -> int:
    """The nesting below ``schema``."""
    if depth > MAX_DEPTH:
        raise _fail(f"{where}: the schema nests more than {MAX_DEPTH} deep")
    if isinstance(schema, bool):
        return depth
    if not isinstance(schema, Mapping):
        raise _fail(f"{where} must be an object or a boolean, got {type(schema).__name__}")
    for keyword in schema:
        rebased = keyword == "$id" and depth > 0  # references below would start from here
        if rebased or (keyword not in SUPPORTED and keyword not in _ANNOTATIONS):
            raise _fail(f"{where}: the keyword {keyword!r} cannot be enforced")
    _check_values(schema, where)
    return max((_walk(child, f"{where}.{name}", depth + 1) for name, child in _children(schema, where)), default=depth)


def _children(schema: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    for keyword, value in schema.items():
        if keyword in _ONE:
            yield keyword, value
        elif keyword in _MANY:
            if not isinstance(value, list):
                raise _fail(f"{where}.{keyword} must be a list")
            yield from ((f"{keyword}[{index}]", child) for index, child in enumerate(value))
        elif keyword in _NAMED:
            if not isinstance(value, Mapping):
                raise _fail(f"{where}.{keyword} must be an object")
            yield from ((f"{keyword}.{name}", child) for name, child in value.items())


def _check_values(schema: Mapping[str, Any], where: str) -> None:
    for keyword in sorted(_NUMBERS & schema.keys()):
        value = schema[keyword]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _fail(f"{where}.{keyword} must be a number")
    fewest = schema.get("minProperties", 0)
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if fewest != 0 and fewest != 1 and not closed:  # a parser cannot tell whether a free name repeats an earlier one
        raise _fail(f"{where}.minProperties above 1 can be enforced only with additionalProperties: false")
    reference = schema.get("$ref", "#")
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise _fail(f"{where}.$ref: {reference!r} is not in this schema; only references within it are followed")


def _references(value: Any) -> Iterator[str]:
    """Every ``$ref`` below, those in annotations and constants included (too many does no harm)."""
    if isinstance(value, Mapping):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for child in value.values():
            yield from _references(child)
    elif isinstance(value, list):
        for child in value:
            yield from _references(child)


def _resolve(schema: Any, reference: str, where: str) -> Any:
    """The target of ``#/a/b``. Anchors are not supported."""
    target = schema
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            raise _fail(f"{where}: {reference!r} leads nowhere")
    if reference != "#" and not reference.startswith("#/"):
        raise _fail(f"{where}: {reference!r} is an anchor; write the path, as in '#/$defs/name'")
    return target


def _nesting(value: Any) -> int:
    children = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list) else []
    return 1 + max(map(_nesting, children), default=0)
