"""Any file is a result or a named error: missing, cut off, of another version, absurd, or hostile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forno.bench.read import read_result
from forno.errors import ResultError
from tests.bench.simulate import closed, result

GOOD = msgspec.json.encode(result([closed(2, count=4)], {"ttft": 100}))


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "result.json"
    path.write_bytes(data)
    return path


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    tree = json.loads(GOOD)
    change(tree)
    return json.dumps(tree).encode()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    found = read_result(written(tmp_path, GOOD))
    assert found == msgspec.json.decode(GOOD, type=type(found))
    assert found.runs[0].requests[0].gaps


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (GOOD[:1000], "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[1, 2]", "not a result"),
        (b"{}", "not a result"),
        (b"[" * 100_000, "not a result"),
        (b'{"a":' * 100_000, "JSON"),
        (b"\x00" * 64, "JSON"),
    ],
)
def test_files_that_are_no_result(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(ResultError, match=why):
        read_result(written(tmp_path, data))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t.update(schema_version=99), "version 99.*update forno"),
        (lambda t: t.update(schema_version=0), "version 0.*measure again"),
        (lambda t: t.update(runs=[]), "no runs"),
        (lambda t: t.update(slo={"<b>": 1}), "slo names"),
        (lambda t: t.update(slo={"ttft": -1}), "slo.ttft is -1"),
        (lambda t: t["runs"][0].pop("summary"), r"missing required field `summary` - at `\$.runs\[0\]`"),
        (lambda t: t["runs"][0].update(value=1e300), r"runs\[0\].value is 1e\+300"),
        (lambda t: t["runs"][0]["summary"].update(completed=-1), "summary.completed is -1"),
        (lambda t: t["runs"][0]["summary"].update(output_tokens_per_s=None), "output_tokens_per_s"),
        (lambda t: t["runs"][0]["summary"]["ttft_ms"].update(p99=1e200), "ttft_ms.p99"),
        (lambda t: t["runs"][0]["summary"].update(errors={"status": -2}), "errors.status is -2"),
        (lambda t: t["runs"][0]["requests"][1].update(first=-1e12), r"requests\[1\].first"),
        (lambda t: t["runs"][0]["requests"][1].update(gaps=[1, -1]), r"requests\[1\].gaps is -1"),
        (lambda t: t["runs"][0]["requests"][1].update(chunk_tokens=[1 << 60]), "chunk_tokens"),
        (lambda t: t["runs"][0]["requests"][1].update(output_tokens=1 << 80), "out.*range|output_tokens|Expected `int`"),
        (lambda t: t["runs"][0]["samples"][0].update(in_flight=-4), r"samples\[0\].in_flight is -4"),
    ],
)
def test_values_that_no_run_has(tmp_path: Path, change: Callable[[dict[str, Any]], object], why: str) -> None:
    with pytest.raises(ResultError, match=why):
        read_result(written(tmp_path, changed(change)))


def test_places_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="not there"):
        read_result(tmp_path / "nowhere.json")
    with pytest.raises(ResultError, match="no file"):
        read_result(tmp_path)
    with pytest.raises(ResultError):
        read_result("a\0b")


def test_huge_files_are_not_read_whole(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="larger than 1 MiB"):
        read_result(written(tmp_path, b" " * (1 << 21)), limit=1 << 20)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.booleans())
def test_damaged_bytes_are_a_result_or_a_named_error(tmp_path: Path, place: int, byte: int, cut: bool) -> None:
    damaged = GOOD[:place] + bytes([byte]) + (b"" if cut else GOOD[place + 1 :])
    try:
        read_result(written(tmp_path, damaged))
    except ResultError:
        return
