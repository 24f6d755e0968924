from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.text.stop import StopStrings


def first_complete(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition: (text before the match, match) for the stop string whose first occurrence ends first."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


def feed(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    watcher = StopStrings(stops)
    out = ""
    for piece in pieces:
        text, matched = watcher.add(piece)
        out += text
        if matched is not None:
            assert watcher.add("more") == ("", matched)
            assert watcher.flush() == ""
            return out, matched
    return out + watcher.flush(), None


@settings(max_examples=500)
@given(st.lists(st.text("abé", min_size=1, max_size=5), max_size=4), st.lists(st.text("abéx", max_size=6), max_size=6))
def test_equals_a_search_of_the_whole_text(stops, pieces):
    assert feed(stops, pieces) == first_complete("".join(pieces), stops)


@settings(max_examples=300)
@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3), st.text("abc", max_size=20))
def test_holds_back_no_more_than_may_become_a_stop_string(stops, text):
    watcher, shown = StopStrings(stops), ""
    for position, character in enumerate(text, 1):
        emitted, matched = watcher.add(character)
        shown += emitted
        if matched is not None:
            return
        held = text[len(shown) : position]
        assert held == "" or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["</s>"], "hello</s>world", ("hello", "</s>")),
        (["bc", "abcd"], "xabcd", ("xa", "bc")),  # complete first
        (["cd", "abcd"], "xabcd", ("x", "abcd")),  # both end here: the longest
        (["aab"], "aaab", ("a", "aab")),  # a failed start inside another
        (["stop"], "sto", ("sto", None)),
        ([], "anything", ("anything", None)),
    ],
)
def test_examples(stops, text, expected):
    assert feed(stops, [text]) == expected
    assert feed(stops, list(text)) == expected


def test_text_passes_at_once_where_nothing_can_match():
    watcher = StopStrings(["###"])
    assert watcher.add("plain text") == ("plain text", None)
    assert watcher.add("a #") == ("a ", None)
    assert watcher.add("# b") == ("## b", None)
