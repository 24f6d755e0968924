"""``forno bench report``: which files it writes."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path

import msgspec
import pytest

from forno.errors import ConfigError, ResultError
from forno.tools.bench import report
from tests.bench.report.test_roofline import state, step
from tests.bench.simulate import closed, result


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.json").write_bytes(msgspec.json.encode(result([closed(2, count=6)])))
    (tmp_path / "state.json").write_text(json.dumps(state(step())), encoding="utf-8")
    return tmp_path


def status_of(*arguments: str) -> int:
    parser = ArgumentParser()
    report.add_arguments(parser)
    return report.run(parser.parse_args(arguments))


def test_a_page_by_default(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("one.json") == 0
    assert capsys.readouterr().out == "report.html\n"
    assert "2 clients" in (files / "report.html").read_text(encoding="utf-8")


def test_tables_alone(files: Path) -> None:
    assert status_of("one.json", "--csv", "runs.csv", "--csv-requests", "requests.csv") == 0
    assert not (files / "report.html").exists()
    assert (files / "runs.csv").read_text(encoding="utf-8").count("\n") == 2
    assert (files / "requests.csv").read_text(encoding="utf-8").count("\n") == 7


def test_a_page_and_a_table(files: Path) -> None:
    assert status_of("one.json", "--csv", "runs.csv", "-o", "out.html") == 0
    assert (files / "out.html").exists()


def test_a_roofline(files: Path) -> None:
    assert status_of("--roofline", "state.json") == 0
    assert "roofline" in (files / "roofline.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("arguments", [[], ["one.json", "--roofline", "state.json"]])
def test_one_kind_of_source(arguments: list[str], files: Path) -> None:
    with pytest.raises(ConfigError, match="name result files"):
        status_of(*arguments)


def test_a_place_that_cannot_be_written(files: Path) -> None:
    with pytest.raises(ResultError, match="cannot write"):
        status_of("one.json", "-o", "nowhere/out.html")


def test_names_tell_files_apart() -> None:
    assert report.names_of(["a/x.json", "b/y.json"]) == ["x", "y"]
    assert report.names_of(["a/x.json", "b/x.txt"]) == ["x.json", "x.txt"]
    assert report.names_of(["a/x.json", "b/x.json"]) == ["a/x.json", "b/x.json"]
