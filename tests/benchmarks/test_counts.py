"""Instruction counts: the table and what is read from callgrind; steps are counted op by op; the kernels have not grown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import counts
from benchmarks.counted import CASES, ROWS, count, stepped
from benchmarks.counts import Change, as_text, changes, parts, totals, with_counts
from forno import _native


def test_what_grew_comes_first_and_little_is_let_pass() -> None:
    before = {"q8_0 x 1": {"qkv": 10_000, "o": 10_000, "down": 10_000, "add": 100}}
    now = {"q8_0 x 1": {"qkv": 10_150, "o": 9_000, "down": 11_000, "add": 130, "new": 5}, "new x 1": {"qkv": 7}}
    found = changes("avx2", before, now, 0.02)
    assert found == [Change("avx2", "q8_0 x 1", "down", 10_000, 11_000), Change("avx2", "q8_0 x 1", "o", 10_000, 9_000)]
    assert "+10.0%" in str(found[0])


def test_callgrinds_parts_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("totals: 1\n")
    for number, total in ((1, 900), (2, 10), (10, 30), (3, 20)):
        (tmp_path / f"out.{number}").write_text(f"events: Ir\nsummary: {total}\n\nfn=(1) f\n1 {total}\n")
    assert parts(tmp_path) == [900, 10, 20, 30]


def test_parts_are_given_to_the_steps_ops() -> None:
    records = [{"case": "a", "rows": 1, "kinds": ["o", "o"]}, {"case": "a", "rows": 7, "kinds": ["down"]}]
    found = totals(with_counts(records, [900, 1, 2, 800, 3]))
    assert found == {"a x 1": {"o": 3}, "a x 7": {"down": 3}}
    with pytest.raises(ValueError, match="wrote 4 parts for 5 marks"):
        list(with_counts(records, [900, 1, 2, 800]))


def test_the_table_survives_writing() -> None:
    held = {"compiler": "GCC", "counts": {"avx2": {"a x 1": {"o": 1}, "b x 1": {"o": 2}}, "portable": {"a x 1": {"o": 3}}}}
    assert json.loads(as_text(held)) == held


def test_another_compilers_table_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "counts.json"
    table.write_text(as_text({"compiler": "another", "counts": {}}))
    assert counts.check(["avx2"], table, 0.02, update=False) == 0
    assert "nothing to compare" in capsys.readouterr().out


def test_growth_fails_and_can_be_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "counts.json"
    table.write_text(as_text({"compiler": _native.COMPILER, "counts": {"portable": {"a x 1": {"o": 1000}}}}))
    monkeypatch.setattr(counts, "why_not", lambda isa: "")
    monkeypatch.setattr(counts, "count", lambda isa: {"a x 1": {"o": 1100, "down": 5}})
    assert counts.check(["portable"], table, 0.02, update=False) == 1
    assert "1 of them for the first time" in capsys.readouterr().out
    assert counts.check(["portable"], table, 0.02, update=True) == 0
    assert counts.check(["portable"], table, 0.02, update=False) == 0


def test_every_instruction_set_is_counted_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "valgrind is not installed" in counts.why_not("portable")
    assert counts.why_not("riscv") == "this machine cannot run them"


def test_every_case_runs_and_marks_its_ops() -> None:
    for case in CASES.values():
        record = count(case, "portable", "marks", 7)
        assert {"embed", "attention", "down", "head"} <= set(record["kinds"]), case.name
    assert all(rows in ROWS for case in CASES.values() for rows, _ in stepped(case))


@pytest.mark.skipif(not _native.CAN_STEP, reason="instructions can be stepped through on x86-64 Linux only")
def test_only_the_chosen_ops_are_stepped_through() -> None:
    isa = _native.available_isas()[0]
    first, again = (count(CASES["q8_0"], isa, "stepping", 1, ("qkv_prepare",)) for _ in range(2))
    assert first == again
    assert {k for k, n in zip(first["kinds"], first["counts"], strict=True) if n} == {"qkv_prepare"}


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_no_kernel_takes_more_instructions_than_the_table_says(isa: str, capsys: pytest.CaptureFixture[str]) -> None:
    if reason := counts.why_not(isa):
        pytest.skip(reason)
    assert counts.check([isa], counts.TABLE, counts.TOLERANCE, update=False) == 0, capsys.readouterr().out
