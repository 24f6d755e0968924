"""Guesses from what was said before: the longest match, the latest among equals, and what experience teaches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.scheduler.drafter import MOST_CANDIDATES, Drafter, NgramIndex, updated


def occurrences(tokens: list[int], shortest: int, longest: int) -> list[tuple[int, int]]:
    """(position, tokens in common, up to ``longest``) of each earlier occurrence of the end, the latest first."""
    found = []
    for position in range(len(tokens) - 2, -1, -1):
        length = 0
        while length < longest and length <= position and tokens[position - length] == tokens[len(tokens) - 1 - length]:
            length += 1
        if length >= shortest:
            found.append((position, length))
    return found


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 3), st.integers(0, 3), st.data())
@settings(max_examples=200, deadline=None)
def test_the_longest_recent_match_is_found_however_the_tokens_came(tokens, shortest, more, data) -> None:
    longest = shortest + more
    index = NgramIndex(shortest, longest)
    for end in sorted(data.draw(st.sets(st.integers(1, len(tokens))))):
        index.find(tokens[:end])
    candidates = occurrences(tokens, shortest, longest)[:MOST_CANDIDATES]
    expected = max(candidates, key=lambda found: (found[1], found[0]), default=(-1, 0))
    assert index.find(tokens) == expected


def test_the_index_holds_one_entry_per_token() -> None:
    index = NgramIndex(2, 4)
    index.find(list(range(1000)))
    assert (len(index._last), len(index._before)) == (999, 1000)


def drafter(odds: float = 0.5) -> Drafter:
    return Drafter(2, 4, [odds] * 5)


def test_a_guess_goes_on_as_it_did_before() -> None:
    assert drafter().guess([1, 2, 3, 4, 5, 1, 2], 3) == [3, 4, 5]
    assert drafter().guess([1, 2, 3, 4], 3) == []


def test_circles_are_guessed_to_go_on() -> None:
    assert drafter().guess([7, 1, 2, 3, 1, 2, 3], 8) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert drafter().guess([5, 5, 5], 4) == [5, 5, 5, 5]


def test_experience_is_kept_by_the_length_of_the_match() -> None:
    one = drafter()
    one.guess([1, 2, 3, 9, 2, 3], 4)
    one.learn(4, 0)
    assert one.length == 2
    assert one.odds == [0.5, 0.5, 0.4, 0.5, 0.5]
    one.guess([1, 2, 3, 9, 2, 3, 1, 2, 3], 4)
    one.learn(2, 2)
    assert one.length == 3
    assert one.odds == pytest.approx([0.5, 0.5, 0.4, 0.68, 0.5])
    assert (one.drafted, one.accepted) == (6, 2)


def test_odds_follow_what_happens() -> None:
    odds = 0.5
    for _ in range(50):
        odds = updated(odds, 4, 4, 0.2)
    assert odds > 0.99
    for _ in range(12):
        odds = updated(odds, 4, 0, 0.2)
    assert odds < 0.1
