"""The check of explanations against clients: what it counts as wrong. With the real model, on request: all 200."""

from __future__ import annotations

import os
import random
import sys

import pytest

from benchmarks import explained
from benchmarks.explained import Seen, body_of, check

MODEL = os.environ.get("FORNO_EXPLAIN_MODEL", "")
"""``FORNO_EXPLAIN_MODEL=smollm2-135m python -m pytest -m slow tests/benchmarks/test_explained.py``; takes half a minute."""


def seen(server: float, parts: float | None = None) -> Seen:
    parts = server if parts is None else parts
    request = {"id": "a", "start": 10.001, "seconds": server, "parts": [{"seconds": parts / 2}, {"seconds": parts / 2}]}
    return Seen("a", 10.0, 11.0, 0.0, [request])


def test_what_adds_up() -> None:
    assert check(seen(0.995)) == []
    assert seen(0.995).before == pytest.approx(0.001)
    assert seen(0.995).after == pytest.approx(0.004)


def test_a_client_and_a_server_that_differ() -> None:
    (line,) = check(seen(0.97))
    assert "1000.00 ms, the server 970.00" in line


def test_the_clients_own_delay_is_its_own() -> None:
    late = seen(0.97)
    late.lag = 0.025
    assert check(late) == []


def test_parts_that_do_not_sum_up() -> None:
    (line,) = check(seen(0.995, 0.99))
    assert "parts sum to 0.99" in line


def test_requests_are_random_and_the_same_for_a_seed() -> None:
    generators = random.Random(1), random.Random(1)
    first, second = ([body_of(rng, i) for i in range(60)] for rng in generators)
    assert first == second
    assert {body["stream"] for body in first} == {True, False}
    assert any("n" in body for body in first)
    assert any("response_format" in body for body in first)


@pytest.mark.slow
@pytest.mark.skipif(
    not MODEL, reason="FORNO_EXPLAIN_MODEL is not set: on a model that answers in a millisecond, 2 % are nothing"
)
def test_every_explanation_adds_up_to_what_its_client_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["explained", "--model", MODEL])
    assert explained.main() == 0
