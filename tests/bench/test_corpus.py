"""The corpus: what is shipped, and that its spans are a ring's."""

from __future__ import annotations

import random
from importlib import resources

from hypothesis import given
from hypothesis import strategies as st

from forno.bench import corpus
from forno.bench.corpus import Corpus


def test_the_shipped_text_is_prose_and_says_where_it_is_from() -> None:
    words = Corpus.load().words
    assert len(words) > 90_000
    assert sum(word[0].isalpha() for word in words) > 0.9 * len(words)
    readme = (resources.files(corpus) / "README.md").read_text("utf-8")
    for name in corpus.FILES:
        assert name in readme
        assert "gutenberg" not in (resources.files(corpus) / name).read_text("utf-8").lower()


@given(start=st.integers(0, 100), count=st.integers(1, 40), size=st.integers(1, 12))
def test_a_span_goes_around(start: int, count: int, size: int) -> None:
    ring = Corpus(tuple(f"w{i}" for i in range(size)))
    assert ring.span(start, count).split() == [f"w{(start + i) % size}" for i in range(count)]


def test_every_word_is_drawn_as_often_as_any_other() -> None:
    ring, rng = Corpus(tuple("abcd")), random.Random(1)
    drawn = "".join(ring.draw(rng, 3).replace(" ", "") for _ in range(2000))
    assert all(abs(drawn.count(word) / len(drawn) - 0.25) < 0.02 for word in "abcd")
