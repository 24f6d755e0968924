"""Strict JSON and careful opening."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from forno.errors import CheckpointError, ModelError
from forno.loader.files import map_file, parse_json_object, read_bytes, read_json_object


def test_a_file_is_mapped_read_only_and_outlives_its_name(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    data = map_file(path)
    path.unlink()
    assert data.tobytes() == b"abc"
    assert data.dtype == np.uint8
    assert not data.flags.writeable


def test_what_cannot_be_mapped_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # open() would wait for a writer
    (tmp_path / "empty").touch()
    for name, kind, message in (
        ("absent", ModelError, "No such file"),
        ("pipe", ModelError, "not a regular file"),
        ("empty", CheckpointError, "is empty"),
        ("a" * 300, ModelError, "too long"),
    ):
        with pytest.raises(kind, match=message):
            map_file(tmp_path / name)
    with pytest.raises(ModelError, match="not a regular file"):
        map_file(tmp_path)


BAD_JSON = {
    b"": "not valid JSON",
    b"{": "not valid JSON",
    b"\xff{}": "not valid JSON",
    b"\xef\xbb\xbf{}": "not valid JSON",
    b"[]": "expected a JSON object, found list",
    b"null": "found NoneType",
    b'{"a": NaN}': "NaN is not a JSON number",
    b'{"a": -Infinity}': "-Infinity is not a JSON number",
    b'{"a": 1e999}': "1e999 is not a JSON number",
    b'{"a": 1, "a": 2}': "the key 'a' appears twice",
    b'{"x": {"a": 1, "b": 2, "a": 1}}': "the key 'a' appears twice",
    b'{"a": ' + b"1" * 5000 + b"}": "not valid JSON",
    b'{"a":' * 100_000: "nested too deeply",
    b"[" * 100_000: "nested too deeply",
}


@pytest.mark.parametrize("raw", BAD_JSON)
def test_bad_json_is_a_named_error(raw: bytes) -> None:
    with pytest.raises(CheckpointError, match=BAD_JSON[raw]) as caught:
        parse_json_object(raw, "config.json")
    assert "config.json" in str(caught.value)


def test_good_json_and_its_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"größe": [1, 2.5, null, {"a": true}]}')
    assert read_json_object(path) == {"größe": [1, 2.5, None, {"a": True}]}
    with pytest.raises(CheckpointError, match="more than the 3"):
        read_bytes(path, 3)
