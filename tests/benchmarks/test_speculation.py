"""The comparison runs on a tiny model, and an answer that differs does not go unnoticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import speculation
from benchmarks.speculation import Turn, compare
from tests.helpers.safetensors_writer import write_tiny_directory
from tests.helpers.tiny import TinyModel


def test_every_task_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_directory(tmp_path / "tiny", TinyModel(context=1024))
    arguments = ["--model", str(model), "--clients", "1,2", "--repeats", "1", "--max-tokens", "12", "--threads", "1"]
    speculation.main(arguments)
    lines = capsys.readouterr().out.splitlines()
    result = json.loads(lines[-1])
    assert [(case["task"], case["clients"]) for case in result["cases"]] == [(t, c) for t in speculation.TASKS for c in (1, 2)]
    assert all(case["accepted"] <= case["drafted"] and case["ratio"] > 0 for case in result["cases"])
    assert len(lines) == 1 + 6 + 1


def test_numbers_and_differences() -> None:
    plain = Turn(2.0, 10, 0, 0, {"0": [1, 2, 3, 4]})
    guessed = Turn(1.0, 4, 8, 6, {"0": [1, 2, 3, 4]})
    case = compare("edit", 1, {"none": [plain], "ngram": [guessed]})
    assert (case["plain"], case["guessed"], case["ratio"], case["steps"]) == (2.0, 4.0, 2.0, 0.4)
    assert speculation.report({"cases": [case]}).splitlines()[1].split() == [
        *("edit,", "1", "2", "4", "2.00", "0%", "40%", "8", "75%")
    ]
    with pytest.raises(AssertionError, match="answers differ"):
        compare("edit", 1, {"none": [plain], "ngram": [replace(guessed, answers={"0": [1, 2, 3, 5]})]})
