"""``forno pull``: the path on stdout, everything else on stderr."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from forno.errors import ModelError
from forno.tools.pull import run
from tests.helpers.gguf_writer import write_tiny_gguf
from tests.helpers.safetensors_writer import write_tiny_directory


def pull(model: str, *, verify: bool = False, as_json: bool = False) -> int:
    return run(argparse.Namespace(model=model, verify=verify, json=as_json))


def test_the_absolute_path_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_gguf(tmp_path / "a.gguf")
    monkeypatch.chdir(tmp_path)
    assert pull("a.gguf") == 0
    assert capsys.readouterr() == (f"{tmp_path / 'a.gguf'}\n", "")


def test_json_gives_the_size_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_tiny_directory(tmp_path / "model")
    assert pull(str(directory), as_json=True) == 0
    answer = json.loads(capsys.readouterr().out)
    size = sum(path.stat().st_size for path in directory.iterdir())
    assert answer == {"model": str(directory), "path": str(directory), "bytes": size, "verified": False}


def test_verify_reaches_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tiny_gguf(tmp_path / "a.gguf")
    seen: list[bool] = []

    def fake(*_: object, verify: bool) -> Path:
        seen.append(verify)
        return path

    monkeypatch.setattr("forno.loader.fetch.fetch", fake)
    pull("smollm2-135m", verify=True)
    assert seen == [True]


def test_an_unknown_model_raises(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match="there is no model 'nothing'"):
        pull("nothing")
    assert capsys.readouterr().out == ""
