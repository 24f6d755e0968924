"""Prefill and decode rates of any engine that can generate: the same work for each, with greedy sampling and fixed lengths.

Knows no engine, and nothing outside the standard library: it runs in the peers' own environments.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

PREFILL, GENERATE = 512, 128
"""Tokens of the prompt whose prefill is timed, and of the single answer: llama-bench's ``pp512`` and ``tg128``."""
CONTEXT, STEPS = 160, 64
"""A batch decodes ``STEPS`` tokens with ``CONTEXT`` tokens in the middle."""
SHORT = 16
"""Tokens of the shorter of two answers: enough for every prompt of a batch to be computed before it ends."""

Generate = Callable[[list[list[int]], int], None]
"""Answer every prompt (token ids) with exactly that many tokens, all in one batch."""


@dataclass(frozen=True, slots=True)
class Case:
    """``tokens`` more tokens in the long run than in the short one; without ``short`` the long run alone is timed."""

    name: str
    batch: int
    prompt: int
    short: int
    long: int
    tokens: int


def cases(batches: Sequence[int]) -> Iterator[Case]:
    yield Case(f"prefill-{PREFILL}", 1, PREFILL, 0, 1, PREFILL)
    yield Case(f"generate-{GENERATE}", 1, 2, 1, 1 + GENERATE, GENERATE)
    prompt = CONTEXT - STEPS // 2 - SHORT
    for batch in batches:
        yield Case(f"decode-{batch}", batch, prompt, SHORT, SHORT + STEPS, batch * STEPS)


def seconds(generate: Generate, case: Case, vocab: int, rng: random.Random, clock: Callable[[], float]) -> float:
    """One measurement: a long run less a short one, each with prompts never seen before, so that no cache helps."""
    taken = []
    for tokens in (case.short, case.long):
        prompts = [[rng.randrange(vocab) for _ in range(case.prompt)] for _ in range(case.batch)]
        started = clock()
        if tokens:
            generate(prompts, tokens)
        taken.append(clock() - started if tokens else 0.0)
    return taken[1] - taken[0]


def measure(
    generate: Generate, batches: Sequence[int], repeats: int, vocab: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Tokens per second by case: medians of ``repeats`` rounds over all cases, after one short run of each to warm up."""
    rng, chosen = random.Random(0), list(cases(batches))
    for case in chosen:
        generate([[rng.randrange(vocab) for _ in range(case.prompt)] for _ in range(case.batch)], 2)
    taken: dict[str, list[float]] = {case.name: [] for case in chosen}
    for number in range(repeats):
        for case in chosen:
            taken[case.name].append(seconds(generate, case, vocab, rng, clock))
            print(f"{number + 1}/{repeats} {case.name}: {taken[case.name][-1]:.3f} s", file=sys.stderr, flush=True)
    return {case.name: case.tokens / max(statistics.median(taken[case.name]), 1e-9) for case in chosen}


def options(description: str, *limits: str) -> argparse.Namespace:
    """The flags that every script here takes, and an integer for each of an engine's own ``limits``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", help="a folder as the engine reads it")
    parser.add_argument("--batches", default="", help="numbers of decoding sequences, comma-separated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--vocab", type=int, required=True, help="random tokens are below it")
    for limit in limits:
        parser.add_argument(f"--{limit}", type=int, required=True)
    found = parser.parse_args()
    found.batches = [int(batch) for batch in found.batches.split(",") if batch]
    return found


def report(generate: Generate, chosen: argparse.Namespace) -> None:
    """Measure what the flags ask for and print it as the last line."""
    print(json.dumps({"tok_s": measure(generate, chosen.batches, chosen.repeats, chosen.vocab)}), flush=True)
