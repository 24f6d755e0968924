"""Durations for people."""

from __future__ import annotations

import pytest

from forno.tools.durations import age, latency


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"),
        (0.0, "0 us"),
        (0.0000123, "12 us"),
        (0.00456, "4.56 ms"),
        (0.0999, "99.9 ms"),
        (0.9996, "1000 ms"),
        (1.234, "1.23 s"),
        (99.96, "100 s"),
        (3000.0, "3000 s"),
    ],
)
def test_latencies(seconds: float | None, said: str) -> None:
    assert latency(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "-"), (0.04, "0.0s"), (45.9, "45s"), (185, "3m05s"), (7650, "2h07m"), (273600, "3d04h")],
)
def test_ages(seconds: float | None, said: str) -> None:
    assert age(seconds) == said
