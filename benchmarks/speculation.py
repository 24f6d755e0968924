"""What prompt lookup decoding is worth: the same requests with and without it, interleaved, on one runner.

    python -m benchmarks.speculation [--model M] [--clients 1,4] [--temperature 0] [--repeats 3]

Per task and number of concurrent requests: tokens per second of both, the ratio, the tokens that a step brings each
request, and how many guesses were right. An answer that differs is an error. Ends in one JSON line.

Prefix caching is off, since the two engines share the runner's blocks; prompts are part of the time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from typing import Any

from benchmarks.measure import Contention, interleave, machine, table
from forno.config import DEFAULT_MODEL, SpeculativeConfig
from forno.engine.build import assemble, build_engine, engine_config
from forno.engine.engine import Engine
from forno.request import Request, SamplingParams
from forno.text import load_chat_template

TEXT = (
    "Maria opened the old bakery before sunrise. She lit the stone oven, weighed the flour, and let the dough rest near the "
    "window. At six the first customers came: the postman, two students, and a nurse on her way home. Everyone asked for the "
    "round bread with sesame, and by eight the shelves were empty."
)
CODE = """def read_table(path):
    rows = []
    with open(path) as file:
        for line in file:
            line = line.strip()
            if not line:
                continue
            rows.append(line.split(","))
    return rows
"""
TASKS = {
    "edit": (
        f"Rewrite this text, replacing the name Maria with Anna, and keep everything else the same:\n\n{TEXT}",
        f"Correct the grammar of this text:\n\n{TEXT.replace('came', 'comes').replace('asked', 'ask')}",
        f"Repeat this text exactly:\n\n{TEXT}",
    ),
    "code": (
        f"Add type hints and a docstring to this Python code, and print the whole code:\n\n```python\n{CODE}```",
        f"Rename the variable rows to table in this code:\n\n```python\n{CODE}```",
        "Write a Python class for a bank account with deposit, withdraw and transfer methods, and a small test for each.",
    ),
    "chat": (
        "Explain how a bread oven works.",
        "What are the advantages of electric cars? Give me a list.",
        "Tell me a short story about a fox and a river.",
    ),
}
MAX_TOKENS = 128


@dataclass(slots=True)
class Turn:
    """One run of a task."""

    seconds: float
    steps: int
    drafted: int
    accepted: int
    answers: dict[str, list[int]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers.values()))


def run_turn(engine: Engine, prompts: Sequence[Sequence[int]], clients: int, sampling: SamplingParams) -> Turn:
    """Answer as many of ``prompts`` at a time as there are ``clients``."""
    before, started = engine.stats(), time.perf_counter()
    answers: dict[str, list[int]] = {}
    waiting = [Request(str(i), tuple(prompt), sampling) for i, prompt in enumerate(prompts)]
    while waiting or engine.has_work:
        while waiting and engine.stats().running + engine.stats().waiting < clients:
            engine.add_request(waiting[0])
            answers[waiting.pop(0).id] = []
        for output in engine.step():
            if output.error is not None:
                raise output.error
            answers[output.id] += output.token_ids
    after, seconds = engine.stats(), time.perf_counter() - started
    accepted = sum(after.accepted_tokens) - sum(before.accepted_tokens)
    return Turn(seconds, after.steps - before.steps, after.draft_tokens - before.draft_tokens, accepted, answers)


def compare(task: str, clients: int, turns: dict[str, list[Turn]]) -> dict[str, Any]:
    """Medians over interleaved turns. Raises ``AssertionError`` if an answer differs."""
    assert all(turn.answers == turns["none"][0].answers for side in turns.values() for turn in side), "answers differ"
    plain, guessed = turns["none"], turns["ngram"]
    ratios = [slow.seconds / fast.seconds for slow, fast in zip(plain, guessed, strict=True)]
    drafted, accepted = (sum(getattr(turn, name) for turn in guessed) for name in ("drafted", "accepted"))
    return {
        "task": task,
        "clients": clients,
        "plain": round(statistics.median(turn.tokens / turn.seconds for turn in plain), 1),
        "guessed": round(statistics.median(turn.tokens / turn.seconds for turn in guessed), 1),
        "ratio": round(statistics.median(ratios), 3),
        "spread": round((max(ratios) - min(ratios)) / statistics.median(ratios), 3),
        "steps": round(sum(turn.steps for turn in guessed) / sum(turn.steps for turn in plain), 3),
        "drafted": drafted,
        "accepted": accepted,
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Every task with every number of clients, ``options.repeats`` times each way."""
    config = engine_config(model=options.model, threads=options.threads, isa=options.isa, enable_prefix_caching=False)
    built = build_engine(config)
    template = load_chat_template(built.checkpoint, built.tokenizer)
    engines = {
        name: assemble(built.runner, built.tokenizer, replace(config, speculative=SpeculativeConfig(speculative=name)))
        for name in ("none", "ngram")
    }
    sampling = SamplingParams(options.max_tokens, temperature=options.temperature, seed=1)
    contention, cases = Contention(), []
    for task, texts in TASKS.items():
        asked = [template.render([{"role": "user", "content": text}], add_generation_prompt=True) for text in texts]
        prompts = [built.tokenizer.encode(text, add_special_tokens=False) for text in asked]
        for clients in map(int, options.clients.split(",")):
            several = list(islice(cycle(prompts), max(clients, len(prompts))))
            turns: dict[str, list[Turn]] = {name: [] for name in engines}
            sides = [(name, partial(run_turn, engine, several, clients, sampling)) for name, engine in engines.items()]
            with contention.watched():
                for name, turn in interleave(options.repeats, sides):
                    turns[name].append(turn)
            cases.append(compare(task, clients, turns))
    return {
        "benchmark": "speculation",
        "model": options.model,
        "isa": built.runner.isa,
        "temperature": options.temperature,
        "machine": machine() | {"others": contention.mean},
        "cases": cases,
    }


def report(result: dict[str, Any]) -> str:
    """Tokens per second without and with guesses, and what became of them."""
    header = ["task, clients", "without", "with", "ratio", "spread", "steps", "guessed", "right"]
    return table(
        header,
        [
            [
                f"{case['task']}, {case['clients']}",
                f"{case['plain']:.0f}",
                f"{case['guessed']:.0f}",
                f"{case['ratio']:.2f}",
                f"{case['spread']:.0%}",
                f"{case['steps']:.0%}",
                f"{case['drafted']}",
                f"{case['accepted'] / max(case['drafted'], 1):.0%}",
            ]
            for case in result["cases"]
        ],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Decoding with and without guessed tokens.")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--clients", default="1,4", help="numbers of concurrent requests, comma-separated")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--isa", default="auto")
    result = run(parser.parse_args(arguments))
    print(report(result))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
