"""``forno bench compare``: what it prints, and its exit status."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path

import msgspec
import pytest

from forno.errors import ResultError
from forno.tools.bench import compare
from tests.bench.simulate import Machine, closed, result


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    for name, fixed in (("fast.json", 0.004), ("slow.json", 0.008)):
        made = result([closed(2, r, None, Machine(fixed=fixed), count=12) for r in range(3)])
        (tmp_path / name).write_bytes(msgspec.json.encode(made))
    return str(tmp_path / "fast.json"), str(tmp_path / "slow.json")


def status_of(*arguments: str) -> int:
    parser = ArgumentParser()
    compare.add_arguments(parser)
    return compare.run(parser.parse_args(arguments))


def test_a_table(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(*files) == 0
    out = capsys.readouterr().out
    assert "closed, 2 clients (3 runs each)" in out
    assert "yes, WORSE" in out


def test_json(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(*files, "--json") == 0
    assert json.loads(capsys.readouterr().out)["names"] == list(files)


def test_a_regression_fails(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    fast, slow = files
    assert status_of(fast, slow, "--fail-on-regression", "10") == compare.REGRESSION
    assert "regression at closed, 2 clients: TPOT p50" in capsys.readouterr().err
    assert status_of(slow, fast, "--fail-on-regression", "10") == 0
    assert status_of(fast, slow, "--fail-on-regression", "10000") == 0


def test_a_run_that_is_not_valid_fails(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    tree = json.loads(Path(files[0]).read_text(encoding="utf-8"))
    tree["runs"][0]["summary"]["valid"] = False
    Path(files[0]).write_text(json.dumps(tree), encoding="utf-8")
    assert status_of(files[0], files[0], "--fail-on-regression", "10") == compare.REGRESSION
    assert "not valid at closed, 2 clients" in capsys.readouterr().err


def test_a_percentage_is_a_percentage(files: tuple[str, str]) -> None:
    for text in ("-1", "nan", "inf", "ten"):
        with pytest.raises(SystemExit):
            status_of(*files, "--fail-on-regression", text)


def test_a_bad_file_is_a_named_error(files: tuple[str, str]) -> None:
    with pytest.raises(ResultError, match="not there"):
        status_of(files[0], "nowhere.json")
