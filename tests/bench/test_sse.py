"""Events from bytes: however these are cut, and up to a limit."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.bench.sse import BadStream, EventParser


def parsed(*pieces: bytes, limit: int = 1 << 20) -> list[bytes]:
    parser = EventParser(limit)
    return [event for piece in pieces for event in parser.feed(piece)]


def defined(text: bytes) -> list[bytes]:
    """The standard's own words, slowly: lines, fields, events."""
    lines = text.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    events: list[bytes] = []
    data: list[bytes] = []
    for line in lines[:-1]:  # the last one has no end
        if not line:
            events += [b"\n".join(data)] if data else []
            data = []
        elif line.split(b":")[0] == b"data":
            value = line[5:]
            data.append(value[1:] if value.startswith(b" ") else value)
    return events


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\n\r\n", [b"a"]),
        (b"data: a\r\rdata: b\r\r\n", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a: b\n\n", [b"a: b"]),
        (b": alive\n\ndata: a\n\n", [b"a"]),
        (b"event: x\nid: 7\nretry: 3\ndata: a\n\n", [b"a"]),
        (b"event: x\n\n", []),
        (b"data\n\n", [b""]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\n", []),
        (b"data: \n\ndata: b\n\n", [b"", b"b"]),
    ],
)
def test_events(text: bytes, events: list[bytes]) -> None:
    assert parsed(text) == events == defined(text)


LINES = st.lists(st.sampled_from([b"data: a", b"data:b", b"data", b": c", b"event: d", b"", b'data: {"x": 1}', b"junk"]))


@settings(max_examples=200)
@given(LINES, st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=1), st.lists(st.integers(0, 200)))
def test_it_does_not_matter_how_the_bytes_are_cut(lines: list[bytes], ends: list[bytes], cuts: list[int]) -> None:
    text = b"".join(line + ends[i % len(ends)] for i, line in enumerate(lines)) + b": end\n"
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places) if a < b]
    assert parsed(*pieces) == defined(text)


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: " + b"x" * 200],
        [b"data: " + b"x" * 60] * 3,
        [b"data: " + b"x" * 60 + b"\n"] * 3,
        [b"data: " + b"x" * 200 + b"\n\n"],
        [b":" + b"x" * 200],
    ],
)
def test_an_event_without_an_end_is_given_up(pieces: list[bytes]) -> None:
    with pytest.raises(BadStream, match="longer than 100 bytes"):
        parsed(*pieces, limit=100)


def test_many_events_are_no_long_one() -> None:
    assert parsed(*[b"data: " + b"x" * 60 + b"\n\n"] * 50, limit=100) == [b"x" * 60] * 50


def test_an_event_that_has_begun_is_noticed() -> None:
    parser = EventParser()
    assert not parser.incomplete
    parser.feed(b"data: a\n")
    assert parser.incomplete
    parser.feed(b"\n")
    assert not parser.incomplete
