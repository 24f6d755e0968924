from __future__ import annotations

import pytest

from forno.errors import ConstraintError
from forno.text import schema

# Every keyword of the drafts that we do not enforce, and what people write that is in none.
UNENFORCED = {
    "not": {"type": "string"},
    "if": {"type": "string"},
    "then": {"minLength": 3},
    "else": {"minLength": 3},
    "uniqueItems": True,
    "contains": {"type": "string"},
    "minContains": 1,
    "maxContains": 2,
    "propertyNames": {"pattern": "a"},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}},
    "dependencies": {"a": ["b"]},
    "unevaluatedProperties": False,
    "unevaluatedItems": False,
    "additionalItems": False,
    "$dynamicRef": "#a",
    "$recursiveRef": "#",
    "$anchor": "a",
    "$dynamicAnchor": "a",
    "$vocabulary": {},
    "contentEncoding": "base64",
    "contentMediaType": "application/json",
    "contentSchema": {},
    "nullable": True,
    "discriminator": {"propertyName": "a"},
    "divisibleBy": 2,
    "extends": {},
    "id": "a",
    "x-guidance": {"lenient": True},
    "minLenght": 3,
}


@pytest.mark.parametrize("keyword", UNENFORCED)
@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"type": "object", "properties": {"p": s}}, lambda s: {"anyOf": [s]}])
def test_keywords_we_cannot_enforce_are_named(keyword, wrap):
    with pytest.raises(ConstraintError, match=f"keyword '{keyword}' cannot be enforced".replace("$", r"\$")):
        schema.check(wrap({keyword: UNENFORCED[keyword]}))


@pytest.mark.parametrize("place", ["items", "additionalProperties"])
@pytest.mark.parametrize("many", ["anyOf", "oneOf", "allOf", "prefixItems"])
@pytest.mark.parametrize("named", ["properties", "patternProperties", "$defs", "definitions"])
def test_every_place_a_schema_can_stand_is_looked_at(place, many, named):
    for inside in ({place: {"not": {}}}, {many: [True, {"not": {}}]}, {named: {"a": {"not": {}}}}):
        with pytest.raises(ConstraintError, match="'not'"):
            schema.check(inside)


def test_names_and_values_are_not_keywords():
    schema.check({"type": "object", "properties": {"not": {"enum": [{"if": 1}]}, "x-y": {"const": {"nullable": 2}}}})
    schema.check({"type": "string", "title": "t", "description": "d", "default": {"not": 1}, "examples": [{"not": 1}]})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (3, "must be an object or a boolean"),
        ({"properties": []}, "properties must be an object"),
        ({"anyOf": {}}, "anyOf must be a list"),
        ({"items": [{"type": "string"}]}, "items must be an object or a boolean"),
        ({"minimum": 3, "exclusiveMinimum": True}, "exclusiveMinimum must be a number"),
        ({"$ref": "http://example.com/x"}, "only references within it"),
        ({"$ref": 3}, "only references within it"),
        ({"$ref": "#/$defs/none"}, "leads nowhere"),
        ({"$ref": "#anchor"}, "is an anchor"),
        ({"minProperties": 2}, "minProperties above 1"),
        ({"minProperties": 2, "additionalProperties": False, "patternProperties": {"a": True}}, "minProperties above 1"),
        ({"enum": [float("nan")] * 40_000}, "at most"),
        ({"enum": [object()]}, "not JSON"),
    ],
)
def test_refused(bad, message):
    with pytest.raises(ConstraintError, match=message):
        schema.check(bad)


def chain(length: int) -> dict[str, object]:
    step = {f"a{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**step, f"a{length}": {"type": "string"}}}


def nested(depth: int) -> dict[str, object]:
    result: dict[str, object] = {"type": "string"}
    for _ in range(depth):
        result = {"type": "object", "properties": {"a": result}}
    return result


def test_depth_is_bounded_through_references_too():
    schema.check(nested(schema.MAX_DEPTH))
    schema.check(chain(20))
    with pytest.raises(ConstraintError, match="deep"):
        schema.check(nested(schema.MAX_DEPTH + 1))
    with pytest.raises(ConstraintError, match="deep"):
        schema.check(chain(1000))  # natively, this would overflow the stack
    with pytest.raises(ConstraintError):
        schema.check(nested(100_000))


def test_references_cannot_lead_around_the_check():
    for place in ("default", "examples", "const"):
        value = [{"not": {}}] if place == "examples" else {"not": {}}
        reference = f"#/{place}/0" if place == "examples" else f"#/{place}"
        with pytest.raises(ConstraintError, match="'not'"):
            schema.check({place: value, "properties": {"a": {"$ref": reference}}})
    schema.check({"$id": "http://example.com/s", "type": "object"})
    with pytest.raises(ConstraintError, match=r"'\$id'"):
        schema.check({"properties": {"a": {"$id": "http://example.com/a", "$ref": "#/x", "x": {}}}})


def test_cycles_are_fine():
    schema.check({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}})
    schema.check({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}})
