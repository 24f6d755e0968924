"""Rows are complete, cells without a value are empty, and text of servers cannot become a formula."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from forno.bench.csv import REQUEST_COLUMNS, RUN_COLUMNS, write_csv, write_requests_csv
from forno.bench.records import Summary
from tests.bench.simulate import closed, result


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_row_per_run(tmp_path: Path) -> None:
    one, two = result([closed(1), closed(4)]), result([closed(4)], model="other")
    write_csv([one, two], tmp_path / "runs.csv", ["one.json", "two.json"])
    found = rows(tmp_path / "runs.csv")
    assert [r["file"] for r in found] == ["one.json", "one.json", "two.json"]
    assert [r["load"] for r in found] == ["closed, 1 client", "closed, 4 clients", "closed, 4 clients"]
    assert found[2]["model"] == "other"
    summary = one.runs[1].summary
    assert summary.ttft_ms is not None
    assert float(found[1]["ttft_ms_p99"]) == pytest.approx(summary.ttft_ms.p99, rel=1e-5)
    assert found[1]["completed"] == str(summary.completed)
    assert found[1]["goodput_per_s"] == ""
    assert found[1]["valid"] == "1"


def test_every_field_of_a_summary_has_a_column() -> None:
    for name in Summary.__struct_fields__:
        assert any(column == name or column.startswith(f"{name}_") for column in RUN_COLUMNS), name
    assert len(set(RUN_COLUMNS)) == len(RUN_COLUMNS)
    assert len(set(REQUEST_COLUMNS)) == len(REQUEST_COLUMNS)


def test_a_row_per_request(tmp_path: Path) -> None:
    run = closed(2, count=4)
    lost = run.requests[3]
    lost.first = lost.last = None
    lost.gaps = []
    lost.error, lost.error_kind = "cut off", "dropped"
    write_requests_csv([result([run])], tmp_path / "requests.csv")
    found = rows(tmp_path / "requests.csv")
    assert len(found) == 4
    assert found[0]["file"] == "1"
    assert float(found[0]["e2e_ms"]) == pytest.approx(1e3 * (run.requests[0].last - run.requests[0].sent), rel=1e-5)  # type: ignore[operator]
    assert int(found[0]["chunks"]) == run.requests[0].output_tokens
    assert (found[3]["ttft_ms"], found[3]["itl_max_ms"], found[3]["chunks"]) == ("", "", "0")
    assert found[3]["error_kind"] == "dropped"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1"])
def test_text_is_no_formula(tmp_path: Path, text: str) -> None:
    run = closed(1, count=2)
    run.requests[0].error = text
    write_requests_csv([result([run])], tmp_path / "requests.csv")
    assert rows(tmp_path / "requests.csv")[0]["error"] == "'" + text
