"""Numbers as people read them."""

from __future__ import annotations

from math import inf, nan

import pytest

from forno.bench.numbers import listed, percent, plural, quantity, short, shown, signed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0, "0"), (3136.2, "3,136"), (42.96, "43.0"), (4.402, "4.40"), (0.26042, "0.260"), (100.0, "100"), (7.0, "7")],
        *[(9.996, "10.0"), (0.9997, "1.00"), (99.96, "100"), (999.7, "1,000"), (1000.0, "1,000")],
        *[(-12.34, "-12.3"), (1234567.8, "1,234,568"), (None, "–"), (nan, "–"), (inf, "–")],
    ],
)
def test_three_digits(value: float | None, text: str) -> None:
    assert shown(value) == text


def test_signs() -> None:
    assert [signed(v) for v in (1.5, -1.5, 0.0, inf)] == ["+1.50", "−1.50", "±0", "unknown"]


def test_quantities() -> None:
    assert [quantity(v, "") for v in (2.04e15, 71e9, 5e6, 3200, 12)] == ["2.04 P", "71 G", "5 M", "3.20 k", "12"]
    assert [quantity(v) for v in (999.7, 999.4, 0.0)] == ["1.00 kB", "999 B", "0 B"]


def test_percentages() -> None:
    assert [percent(s) for s in (0.97, 0.0996, 0.0994, -0.5)] == ["97 %", "10 %", "9.9 %", "-50 %"]


def test_what_says_something_is_listed() -> None:
    assert listed({"name": "chat", "turns": 3, "salt": "", "think": 0, "path": None, "seed": 1}) == "turns 3, seed 1"


def test_plurals() -> None:
    assert [plural(n, "run") for n in (0, 1, 2000)] == ["0 runs", "1 run", "2,000 runs"]


def test_short_texts_are_one_printable_line() -> None:
    assert short("a\nb\t\x00\x1b[31mc\u202e") == "a b [31mc"
    assert short("x" * 100, 10) == "x" * 9 + "…"
    assert short("x" * 10**6, 10) == "x" * 9 + "…"
