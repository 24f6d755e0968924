"""The native reader of length-prefixed strings: what was written comes back, and no length leads outside the data."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno import _native

texts = st.lists(st.binary(max_size=9) | st.text(max_size=5).map(str.encode), max_size=8)


def stored(strings: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(string)) + string for string in strings)


def as_read(string: bytes) -> str | bytes:
    try:
        return string.decode()
    except UnicodeDecodeError:
        return string


@settings(max_examples=60, deadline=None)
@given(texts, st.binary(max_size=5), st.binary(max_size=5))
def test_strings_come_back(strings: list[bytes], before: bytes, after: bytes) -> None:
    data = before + stored(strings) + after
    assert _native.read_strings(data, len(before), len(strings)) == [*map(as_read, strings)]
    assert _native.skip_strings(data, len(before), len(strings)) == len(data) - len(after)


@settings(max_examples=60, deadline=None)
@given(texts.filter(len), st.data())
def test_data_cut_short_are_refused(strings: list[bytes], data: st.DataObject) -> None:
    whole = stored(strings)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for read in (_native.read_strings, _native.skip_strings):
        with pytest.raises(ValueError, match="outside the data"):
            read(whole[:cut], 0, len(strings))


@pytest.mark.parametrize(("pos", "count"), [(-1, 1), (0, -1), (9, 1), (1 << 62, 1), (0, 2), (0, 1 << 62), (-(1 << 63), 1)])
def test_wrong_positions_and_counts_are_refused(pos: int, count: int) -> None:
    for read in (_native.read_strings, _native.skip_strings):
        with pytest.raises(ValueError, match=r"outside the data|negative"):
            read(struct.pack("<Q", 0), pos, count)


@pytest.mark.parametrize("length", [1, 1 << 31, 1 << 63, (1 << 64) - 8, (1 << 64) - 1])
def test_absurd_lengths_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match="outside the data"):
        _native.skip_strings(struct.pack("<Q", length), 0, 1)
