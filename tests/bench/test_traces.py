"""Trace formats: what good lines mean, and that bad ones are named."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forno.bench import traces
from forno.bench.traces import Recorded, read
from forno.errors import ConfigError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,0
"""
MOONCAKE = """{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0,1,2,3,4,5,6,7,8,9,10,11,12,13]}

{"timestamp": 3052, "input_length": 2287, "output_length": 316, "hash_ids": [0, 42, 43, 44, 45]}
"""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_azure(tmp_path: Path) -> None:
    first, second = read(write(tmp_path, AZURE))
    assert (first.input_tokens, first.max_tokens) == (374, 44)
    assert (second.input_tokens, second.max_tokens) == (396, 1)  # nobody can ask for no token
    assert first.at is not None
    assert second.at == pytest.approx(first.at + 4.314579)


def test_azure_of_2024_with_zones_columns_elsewhere_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = "\ufeffGeneratedTokens,TIMESTAMP,ContextTokens\r\n7,2024-05-10 00:00:00.009930+00:00,2162\r\n"
    assert read(write(tmp_path, text), "azure") == [Recorded(1715299200.00993, input_tokens=2162, max_tokens=7)]


def test_mooncake(tmp_path: Path) -> None:
    first, second = read(write(tmp_path, MOONCAKE))
    assert first == Recorded(0.0, input_tokens=6755, blocks=tuple(range(14)), max_tokens=500)
    assert (second.at, second.blocks) == (3.052, (0, 42, 43, 44, 45))


def test_our_own(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi", "name": "x"}]
    lines = [
        {"at": 0.5, "messages": messages, "max_tokens": 7, "session": 3, "body": {"temperature": 0.5}},
        {"prompt": "Once"},
        {"input_tokens": 40, "session": "a"},
    ]
    assert read(write(tmp_path, "\n".join(map(json.dumps, lines)))) == [
        Recorded(0.5, messages=tuple(messages), max_tokens=7, session="3", extra={"temperature": 0.5}),
        Recorded(None, prompt="Once"),
        Recorded(None, input_tokens=40, session="a"),
    ]


def test_a_limit_takes_the_first_requests_and_reads_no_further(tmp_path: Path) -> None:
    assert len(read(write(tmp_path, MOONCAKE + "broken"), limit=2)) == 2


OWN = '{"prompt": "a"}\n'


@pytest.mark.parametrize(
    ("format", "text", "said"),
    [
        ("auto", "", "holds no request"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        ("auto", "time,tokens\n", "trace:1: .*TIMESTAMP"),
        ("auto", AZURE + "2023-11-16 18:15:51,1\n", "trace:4: 2 values"),
        ("auto", AZURE + "yesterday,1,1\n", "trace:4: .*yesterday"),
        ("auto", AZURE + "2023-11-16 18:15:51,-1,1\n", "trace:4: ContextTokens"),
        ("auto", AZURE + "2023-11-16 18:15:51,1,99999999999999\n", "trace:4: GeneratedTokens"),
        ("auto", MOONCAKE + '{"timestamp": 5}', "trace:4: .*input_length"),
        ("auto", MOONCAKE + "{", "trace:4: "),
        ("mooncake", '{"timestamp": -1, "input_length": 1, "output_length": 1}', "trace:1: .*timestamp"),
        ("mooncake", '{"timestamp": 1, "input_length": 1, "output_length": 1, "turn": 1}', "trace:1: .*turn"),
        ("mooncake", '{"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}', "only 1 blocks of 512"),
        ("mooncake", '{"timestamp": 1, "input_length": 99999999, "output_length": 1}', "trace:1: .*input_length"),
        ("jsonl", OWN + "[]", "trace:2: "),
        ("jsonl", OWN + "{}", "trace:2: exactly one of"),
        ("jsonl", OWN + '{"prompt": "a", "input_tokens": 3}', "trace:2: exactly one of"),
        ("jsonl", OWN + '{"prompt": "a", "colour": 3}', "trace:2: .*colour"),
        ("jsonl", OWN + '{"messages": []}', "trace:2: "),
        ("jsonl", OWN + '{"messages": [{"role": "user"}]}', "trace:2: .*content"),
        ("jsonl", OWN + '{"messages": [{"role": 1, "content": ""}]}', "trace:2: .*role"),
        ("jsonl", OWN + '{"prompt": "a", "max_tokens": 0}', "trace:2: .*max_tokens"),
        ("jsonl", OWN + '{"prompt": "a", "at": -1}', "trace:2: .*at"),
        ("jsonl", OWN + '{"prompt": "a", "body": {"stream": false}}', "trace:2: body must not set 'stream'"),
        ("jsonl", OWN + '{"at": 1e16, "prompt": "a"}', "trace:2: .*at"),
        ("jsonl", OWN + '{"prompt": "a", "body": {"x": ' + "[" * 100_000 + "]" * 100_000 + "}}", "trace:2: "),
        ("auto", AZURE + "2023-11-16 18:15:51,1\r2,1\n", "trace:4: "),
        ("auto", AZURE + '"' + "x" * 200_000 + "\n", "trace:4: "),
        ("parquet", OWN, "parquet"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(tmp_path: Path, format: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(write(tmp_path, text), format)


def test_bytes_that_are_no_text_and_endless_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"trace:2: .*UTF-8"):
        read(write(tmp_path, OWN.encode() + b"\xff\xfe"))
    monkeypatch.setattr(traces, "LINE_LIMIT", 100)
    with pytest.raises(ConfigError, match=r"trace:2: .*longer"):
        read(write(tmp_path, OWN + "x" * 101))
    monkeypatch.setattr(traces, "FILE_LIMIT", 2 * len(OWN))
    with pytest.raises(ConfigError, match=r"trace:3: more than"):
        read(write(tmp_path, OWN * 3))


def test_a_file_with_too_many_requests_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "REQUEST_LIMIT", 3)
    assert len(read(write(tmp_path, OWN * 3))) == 3
    with pytest.raises(ConfigError, match="more than 3"):
        read(write(tmp_path, OWN * 4))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="cannot read"):
            read(path)


PIECES = [
    *b'",{}[]:\r\n\x00\\\x85\x1c',
    *AZURE.encode().split(b","),
    *MOONCAKE.encode().split(b" "),
    b"9" * 5000,
    b"1e999",
    b"NaN",
]
PIECES = [bytes([piece]) if isinstance(piece, int) else piece for piece in PIECES]
PIECES += [
    b"0001-01-01T00:00:00+23:59,1,1",
    b"9999-12-31T23:59:59-23:59,1,1",
    b"\xd9\xa3",
    b"\xc2\xb2",
    b"\xe2\x80\xa8",
    b"\\ud800",
]
"""What formats are made of, and what parsers stumble over."""


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    format=st.sampled_from(traces.FORMATS),
    data=st.one_of(
        st.binary(max_size=80),
        st.text(max_size=80).map(str.encode),
        st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join),
    ),
)
def test_any_bytes_are_read_or_refused(tmp_path: Path, format: str, data: bytes) -> None:
    head = {"azure": AZURE, "mooncake": MOONCAKE, "jsonl": OWN}.get(format, "")
    with suppress(ConfigError):
        assert read(write(tmp_path, head.encode() + data), format)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["at", "messages", "prompt", "input_tokens", "max_tokens", "session", "body", "timestamp", "hash_ids"]),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
            lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
            max_leaves=5,
        ),
    )
)
def test_any_json_is_read_or_refused(tmp_path: Path, line: dict[str, object]) -> None:
    path = write(tmp_path, json.dumps(line))
    for format in ("jsonl", "mooncake"):
        with suppress(ConfigError):
            (found,) = read(path, format)
            assert found.prompt is not None or found.messages or (found.input_tokens or 0) > 0
