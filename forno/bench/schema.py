"""The result file's documentation, made from ``records.py``: its JSON schema, and a table of fields and their meaning.

``python -m forno.bench.schema docs`` writes both into the folder ``docs``.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from forno.bench import records
from forno.bench.records import Distribution, LoadSample, RequestRecord, Result, Run, Stage, Summary

STRUCTS = (Result, Run, Stage, Summary, Distribution, RequestRecord, LoadSample)
"""In the order of the table: from the whole to its parts."""
SCHEMA_FILE, TABLE_FILE = "bench-schema.json", "bench-result.md"


def descriptions() -> dict[str, dict[str, str]]:
    """Struct -> field -> the docstring below it, on one line; fields without one are left out."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(records)).body:
        if isinstance(node, ast.ClassDef):
            pairs = zip(node.body, node.body[1:], strict=False)
            found[node.name] = {
                field.target.id: " ".join(text.value.value.split())
                for field, text in pairs
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
            }
    return found


def schema() -> dict[str, Any]:
    """The JSON schema of a result file (draft 2020-12), with every docstring as a ``description``."""
    told = descriptions()
    (root,), components = msgspec.json.schema_components([Result], ref_template="#/$defs/{name}")
    for struct, definition in components.items():
        for name, field in definition.get("properties", {}).items():
            if text := told.get(struct, {}).get(name):
                field["description"] = text
    title = f"Result of forno bench, schema version {records.SCHEMA_VERSION}"
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **root, "$defs": components}
    return dict(json.loads(json.dumps(made)))  # defaults that are tuples become lists, as in the file


def table() -> str:
    """The same as a Markdown document."""
    told = descriptions()
    lines = [
        "# The result file of `forno bench`",
        "",
        f"Schema version {records.SCHEMA_VERSION}. One JSON object, a `Result`; its JSON schema is",
        "[bench-schema.json](bench-schema.json).",
        "Times of requests are seconds since their run's start, durations are seconds;",
        "fields of summaries have their unit in their name. `forno bench compare` and `forno bench report` read such files.",
        "",
        "This page is made from `bench/records.py` by `python -m forno.bench.schema docs`.",
    ]
    for struct in STRUCTS:
        lines += ["", f"## {struct.__name__}", "", *_introduction(struct), "| field | type | meaning |", "|---|---|---|"]
        meanings = told[struct.__name__]
        for name in struct.__struct_fields__:
            kind = _kind(get_type_hints(struct)[name])
            lines.append(f"| `{name}` | {kind} | {meanings.get(name, '').replace('``', '`').replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _introduction(struct: type) -> list[str]:
    return [" ".join((struct.__doc__ or "").split()).replace("``", "`"), ""]


def _kind(hint: Any) -> str:
    text = getattr(hint, "__name__", str(hint)) if isinstance(hint, type) and not getattr(hint, "__args__", ()) else str(hint)
    for module in ("forno.bench.records.", "typing."):
        text = text.replace(module, "")
    return text.replace(" | None", " or null")


def main(arguments: list[str]) -> None:
    """Write both files into the folder given."""
    folder = Path(arguments[0] if arguments else "docs")
    (folder / SCHEMA_FILE).write_text(json.dumps(schema(), indent=2) + "\n", encoding="utf-8")
    (folder / TABLE_FILE).write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
