"""Distributions: what they mean, and what is refused."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.bench import lengths
from forno.errors import ConfigError


def draws(text: str, count: int = 4000) -> list[int]:
    rng, distribution = random.Random(7), lengths.parse(text, "--x")
    return [distribution.whole(rng) for _ in range(count)]


def test_a_number_is_itself() -> None:
    assert set(draws("512", 10)) == {512}
    assert lengths.parse("0.25", "--x").draw(random.Random(1)) == 0.25


def test_a_uniform_includes_both_ends_and_favours_no_number() -> None:
    counts = {value: draws("uniform:3:6").count(value) for value in range(3, 7)}
    assert sum(counts.values()) == 4000
    assert all(900 < count < 1100 for count in counts.values())


def test_a_lognormals_mean_is_its_mean() -> None:
    found = draws("lognormal:512:0.5", 20_000)
    assert statistics.fmean(found) == pytest.approx(512, rel=0.02)
    assert statistics.stdev(map(math.log, found)) == pytest.approx(0.5, rel=0.03)
    assert lengths.parse("lognormal:512:0.5", "--x").mean == 512


def test_a_lognormals_largest_value_cuts() -> None:
    assert max(draws("lognormal:512:0.5:800")) == 800


@settings(max_examples=50)
@given(
    st.one_of(
        st.integers(0, 10**6).map(str),
        st.tuples(st.integers(0, 500), st.integers(0, 500)).map(lambda ends: f"uniform:{min(ends)}:{max(ends)}"),
        st.tuples(st.floats(1, 1e4), st.floats(0, 5)).map(lambda pair: f"lognormal:{pair[0]}:{pair[1]}"),
    )
)
def test_a_count_is_at_least_one_and_no_larger_than_the_largest(text: str) -> None:
    distribution = lengths.parse(text, "--x")
    value = distribution.whole(random.Random(1))
    assert 1 <= value <= max(1, distribution.high)


WRONG = ["", "x", "-1", "nan", "inf", "1e10", "uniform:5", "uniform:9:5", "uniform:1.2:1.8", "uniform:1:2:3", "lognormal:0:1"]
WRONG += ["lognormal:5:9", "lognormal:512:1:100", "normal:5:1", "constant:1:2", ":", "5:6"]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_distribution_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--input-tokens"):
        lengths.parse(text, "--input-tokens")
