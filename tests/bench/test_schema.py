"""The documents made from the records are the records'."""

from __future__ import annotations

import json
from pathlib import Path

from forno.bench import records
from forno.bench.schema import SCHEMA_FILE, STRUCTS, TABLE_FILE, descriptions, main, schema, table

DOCS = Path(__file__).resolve().parents[2] / "docs"
OBVIOUS = {"mean", "min", "max", "p90", "p95", "p99"}
AGAIN = "make it anew: python -m forno.bench.schema docs"


def test_the_documents_are_current() -> None:
    assert json.loads((DOCS / SCHEMA_FILE).read_text(encoding="utf-8")) == schema(), AGAIN
    assert (DOCS / TABLE_FILE).read_text(encoding="utf-8") == table(), AGAIN


def test_every_field_says_what_it_means() -> None:
    told = descriptions()
    for struct in STRUCTS:
        missing = set(struct.__struct_fields__) - told[struct.__name__].keys() - OBVIOUS
        assert not missing, f"{struct.__name__} in {records.__file__}"


def test_writing_them(tmp_path: Path) -> None:
    main([str(tmp_path)])
    assert (tmp_path / TABLE_FILE).read_text(encoding="utf-8") == table()
    definitions = json.loads((tmp_path / SCHEMA_FILE).read_text(encoding="utf-8"))["$defs"]
    assert definitions["Result"]["properties"]["tool"]["description"]
    assert "requests" in definitions["Run"]["required"]
