"""Rates come from differences, so what does not depend on the length of an answer drops out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.peers.inside.rates import CONTEXT, SHORT, STEPS, cases, measure
from benchmarks.peers.place import REPOSITORY


class Clock:
    """An engine with a cost for every prompt token, every step, and for being asked at all."""

    now = 0.0

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def generate(self, prompts: list[list[int]], tokens: int) -> None:
        self.asked.append((len(prompts), len(prompts[0]), tokens))
        self.now += 0.5 + 0.001 * sum(map(len, prompts)) + 0.01 * (tokens - 1)

    def __call__(self) -> float:
        return self.now


def test_only_decoding_remains_of_a_decode_case() -> None:
    clock = Clock()
    found = measure(clock.generate, [8], 3, 100, clock)
    assert found["decode-8"] == pytest.approx(8 / 0.01)
    assert found["generate-128"] == pytest.approx(1 / 0.01)
    assert found["prefill-512"] == pytest.approx(512 / (0.5 + 0.512))


def test_a_batch_decodes_around_the_context() -> None:
    case = next(case for case in cases([32]) if case.name == "decode-32")
    first, last = case.prompt + case.short, case.prompt + case.long
    assert (first + last) / 2 == CONTEXT
    assert last - first == STEPS
    assert case.short == SHORT > 1


def test_prompts_are_never_repeated() -> None:
    seen: list[tuple[int, ...]] = []
    measure(lambda prompts, _: seen.extend(map(tuple, prompts)), [4], 2, 1 << 40, Clock())
    assert len(seen) == len(set(seen))


def test_scripts_need_nothing_but_the_repository() -> None:
    """Peers' environments have none of forno's dependencies."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import benchmarks.peers.inside.rates, benchmarks.peers.inside as i; "
    code += "assert not [m for m in sys.modules if m.split('.')[0] in ('forno', 'numpy')]"
    subprocess.run([sys.executable, "-I", "-c", code, str(REPOSITORY)], check=True)
