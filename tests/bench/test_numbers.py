"""Numbers as people read them."""

from __future__ import annotations

from math import inf, nan

import pytest

from forno.bench.numbers import plural, short, shown, signed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0, "0"), (3136.2, "3,136"), (42.96, "43.0"), (4.402, "4.40"), (0.26042, "0.260"), (100.0, "100"), (7.0, "7")],
        *[(-12.34, "-12.3"), (1234567.8, "1,234,568"), (None, "–"), (nan, "–"), (inf, "–")],
    ],
)
def test_three_digits(value: float | None, text: str) -> None:
    assert shown(value) == text


def test_signs() -> None:
    assert [signed(v) for v in (1.5, -1.5, 0.0, inf)] == ["+1.50", "−1.50", "±0", "unknown"]


def test_plurals() -> None:
    assert [plural(n, "run") for n in (0, 1, 2000)] == ["0 runs", "1 run", "2,000 runs"]


def test_short_texts_are_one_printable_line() -> None:
    assert short("a\nb\t\x00\x1b[31mc\u202e") == "a b [31mc"
    assert short("x" * 100, 10) == "x" * 9 + "…"
    assert short("x" * 10**6, 10) == "x" * 9 + "…"
