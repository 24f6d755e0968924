"""The doctor's report: whole, in both forms, with advice for each problem it knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forno.__main__ import main
from forno.kernels.cpu import ceilings
from forno.program.ceiling import Ceiling
from forno.tools import doctor


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return doctor.examine(seconds=0.01)


def test_report_is_complete_and_positive(report: dict[str, Any]) -> None:
    assert report["threads"] >= 1
    assert report["kernels_chosen"] == report["kernels_available"][0]
    assert "portable" in report["kernels_available"]
    assert set(report["measured"]) == {"l3_read", "dram_read", "int8", "bf16", "fp32"}
    assert report["measured"]["dram_read"] > 0
    assert all(value is None or value > 0 for value in report["measured"].values())
    assert json.loads(json.dumps(report)) == report


def test_table_has_a_line_per_fact_and_aligned_columns(report: dict[str, Any]) -> None:
    facts = doctor.as_table(report).split("\n\n")[0].splitlines()
    assert len(facts) == 15
    column = len("instruction sets") + 2
    assert all(line[column - 1] == " " and line[column] != " " for line in facts)


def test_rates_that_the_chip_lacks_say_so(report: dict[str, Any]) -> None:
    measured = {**report["measured"], "bf16": None}
    assert "not available" in doctor.as_table({**report, "measured": measured})


HEALTHY: dict[str, Any] = {
    "cgroup_quota": None,
    "affinity": 8,
    "logical_cpus": 8,
    "cores": 8,
    "threads": 8,
    "kernels_chosen": "avx512",
    "huge_pages": "madvise",
    "load": 0.5,
    "memory_available": 64 << 30,
}


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ({"cgroup_quota": 2.5}, "grants 2.5 CPUs of the 8 visible ones (quotas are rounded down"),
        ({"affinity": 4, "threads": 4}, "4 of 8 CPUs"),
        ({"cores": 4}, "--threads 4"),
        ({"kernels_chosen": "portable"}, "AVX2"),
        ({"huge_pages": "never"}, "huge pages"),
        ({"load": 7.5}, "load 7.5 on 8 CPUs"),
        ({"memory_available": 1 << 30}, "1.0 GiB"),
    ],
)
def test_each_problem_has_one_sentence(problem: dict[str, Any], words: str) -> None:
    assert doctor.advise(HEALTHY) == []
    (sentence,) = doctor.advise({**HEALTHY, **problem})
    assert words in sentence


def test_json_and_table_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {"int8": 4.0, "bf16": None, "fp32": 2.0, "dram_read": 3.0, "l3_read": None}
    monkeypatch.setenv("FORNO_CACHE", str(tmp_path))
    monkeypatch.setattr(doctor, "examine", lambda: {**HEALTHY, "measured": rates, "advice": []})
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["affinity"] == 8
    assert ceilings.known(8, "avx512") == Ceiling(4.0, 2.0, 2.0, 3.0, 3.0), "servers started later use what it measured"
    with pytest.raises(SystemExit):
        main(["doctor", "--nonsense"])
