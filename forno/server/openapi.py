"""The OpenAPI document, made from the endpoint table and the wire types, and a page that shows it.

The page is plain HTML made here: it works offline and loads nothing from elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any

import msgspec

from forno import __version__
from forno.server.endpoint import Endpoint
from forno.server.wire import ANY_TOKEN, ErrorResponse

REASONS = {
    400: "The request is invalid; `param` names the field.",
    401: "The API key is missing or unknown.",
    404: "No such model.",
    408: "The request's deadline passed.",
    413: "The body is too large.",
    429: "The queue is full; see `Retry-After`.",
    500: "The engine failed.",
    503: "The server is draining or unhealthy.",
}
EVENT = {
    "type": "object",
    "properties": {"data": {"type": "string", "description": "A chunk as JSON; [DONE] in the last event."}},
    "required": ["data"],
}
"""One server-sent event."""
SCHEMA = "#/components/schemas/{name}"


def document(endpoints: Iterable[Endpoint], vocab_size: int) -> dict[str, Any]:
    """The OpenAPI 3.1 document of ``endpoints`` for a model of ``vocab_size`` tokens."""
    endpoints = tuple(endpoints)
    types = [t for e in endpoints for t in (e.body, e.response) if t is not None] + [ErrorResponse]
    schemas, components = msgspec.json.schema_components(types, ref_template=SCHEMA)
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, by_type)
    security = {"bearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "forno", "version": __version__, "summary": "An OpenAI-compatible LLM server"},
        "paths": paths,
        "components": {"schemas": _with_vocabulary(components, vocab_size), "securitySchemes": security},
        "security": [{}, {"bearer": []}],
    }


def _with_vocabulary(schema: Any, size: int) -> Any:
    """``schema`` with the real bound of token ids."""
    if isinstance(schema, dict):
        return {
            key: size if (key, value) == ("exclusiveMaximum", ANY_TOKEN) else _with_vocabulary(value, size)
            for key, value in schema.items()
        }
    return [_with_vocabulary(item, size) for item in schema] if isinstance(schema, list) else schema


def _operation(endpoint: Endpoint, by_type: dict[Any, Any]) -> dict[str, Any]:
    media: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if endpoint.response is not None:
        media = {"application/json": {"schema": by_type[endpoint.response]}}
    if endpoint.streams:
        media["text/event-stream"] = {"schema": EVENT}
    failed = {"application/json": {"schema": by_type[ErrorResponse]}}
    responses: dict[str, Any] = {"200": {"description": "Success", "content": media}}
    responses |= {str(code): {"description": REASONS[code], "content": failed} for code in endpoint.errors}
    operation: dict[str, Any] = {"summary": endpoint.summary, "responses": responses}
    if parameters := _parameters(endpoint):
        operation["parameters"] = parameters
    if endpoint.body is not None:
        content = {"application/json": {"schema": by_type[endpoint.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)\}", endpoint.path)
    path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    return path + [{"name": name, "in": "query", "schema": schema} for name, schema in endpoint.query.items()]


PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>forno API</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #222; }}
h2 {{ font-size: 1.1rem; margin: 2rem 0 .3rem; border-top: 1px solid #ddd; padding-top: 1rem; }}
code {{ font: 13px ui-monospace, monospace; background: #f4f1ec; padding: .1em .3em; border-radius: 3px; }}
.method {{ color: #b3541e; font-weight: 700; }} table {{ border-collapse: collapse; width: 100%; margin: .5rem 0; }}
td {{ border-bottom: 1px solid #eee; padding: .2rem .6rem .2rem 0; vertical-align: top; }}
td:first-child {{ white-space: nowrap; }}
</style></head><body><h1>forno {version}</h1>
<p>The OpenAI API, served by forno. The machine-readable form is <a href="/openapi.json">/openapi.json</a>.
Fields that are not listed are refused with 400 and their name.</p>{body}</body></html>"""


def page(doc: dict[str, Any]) -> str:
    """A self-contained HTML page that lists each endpoint with its fields."""
    schemas = doc["components"]["schemas"]
    parts = []
    for path, operations in doc["paths"].items():
        for method, operation in operations.items():
            parts.append(
                f'<h2><span class="method">{method.upper()}</span> {escape(path)}</h2><p>{escape(operation["summary"])}</p>'
            )
            if parameters := operation.get("parameters"):
                parts.append(_fields({"properties": {p["name"]: p["schema"] for p in parameters}}))
            body = operation.get("requestBody")
            if body is not None:
                name = body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[-1]
                parts.append(_fields(schemas[name]))
    return PAGE.format(version=__version__, body="".join(parts))


def _fields(schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = []
    for name, spec in schema["properties"].items():
        mark = " (required)" if name in required else ""
        rows.append(f"<tr><td><code>{escape(name)}</code>{mark}</td><td>{escape(_kind(spec))}</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def _kind(spec: dict[str, Any]) -> str:
    """A short description of a JSON schema, for people."""
    if "$ref" in spec:
        return spec["$ref"].rsplit("/", 1)[-1]
    if "anyOf" in spec:
        return " or ".join(dict.fromkeys(_kind(s) for s in spec["anyOf"] if s.get("type") != "null"))
    if "enum" in spec:
        return " | ".join(map(str, spec["enum"]))
    kind = str(spec.get("type", "anything"))
    if kind == "array":
        return f"list of {_kind(spec.get('items', {}))}"
    low = spec.get("minimum", spec.get("exclusiveMinimum"))
    high = spec.get("maximum", spec.get("exclusiveMaximum"))
    bounds = f" {low} to {high}" if low is not None and high is not None else f" from {low}" if low is not None else ""
    return kind + bounds
