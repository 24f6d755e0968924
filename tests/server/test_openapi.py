"""The OpenAPI document: complete and consistent. Whether it is true is what ``test_schemathesis`` checks."""

from __future__ import annotations

import re

import msgspec

from forno.server import wire
from forno.server.app import ENDPOINTS
from tests.server.harness import Running

OPERATIONS = sorted((e.method, e.path) for e in ENDPOINTS)


def test_every_endpoint_and_field_is_described(server: Running) -> None:
    document = server.http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert {(m.upper(), p) for p, operations in document["paths"].items() for m in operations} == set(OPERATIONS)
    for kind in (wire.ChatRequest, wire.CompletionRequest, wire.TokenizeRequest, wire.DetokenizeRequest):
        schema = document["components"]["schemas"][kind.__name__]
        assert set(schema["properties"]) == {f.encode_name for f in msgspec.structs.fields(kind)}
        assert schema["additionalProperties"] is False


def test_every_reference_resolves(server: Running) -> None:
    text = server.http.get("/openapi.json").text
    schemas = server.http.get("/openapi.json").json()["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/([^"]+)"', text)) <= set(schemas)


def test_token_ids_are_bounded_by_the_vocabulary(server: Running) -> None:
    schemas = server.http.get("/openapi.json").json()["components"]["schemas"]
    tokens = schemas["DetokenizeRequest"]["properties"]["tokens"]["items"]
    assert (tokens["minimum"], tokens["exclusiveMaximum"]) == (0, server.serving.tokenizer.vocab_size)
    priority = schemas["ChatRequest"]["properties"]["priority"]["anyOf"][0]  # not a token, whatever its bounds
    assert (priority["minimum"], priority["maximum"]) == (-(1 << 31), (1 << 31) - 1)


def test_the_page_lists_everything_and_loads_nothing(server: Running) -> None:
    page = server.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    for _, path in OPERATIONS:
        assert path in page.text
    for field in ("max_completion_tokens", "structured_outputs", "prompt_logprobs"):
        assert f"<code>{field}</code>" in page.text
    assert not re.search(r"<(script|link|img)|https?://", page.text)
