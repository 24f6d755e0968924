"""Reasons are computed: other numbers give other sentences."""

from __future__ import annotations

import msgspec
import pytest

from forno.bench.ablate.arms import every_arm
from forno.bench.ablate.counters import Work
from forno.bench.ablate.facts import Facts
from forno.bench.ablate.why import Side, quantity, reason
from tests.bench.ablate.made import FACTS, WORK

change = msgspec.structs.replace
BASE = Side(WORK, FACTS, 15.8)


def test_every_technique_has_a_reason() -> None:
    for arm in every_arm(["f32"], each_pass=True, models=["x.gguf"]):
        assert reason(arm.technique, BASE, BASE).endswith(".")


@pytest.mark.parametrize(
    ("technique", "work", "facts", "expected"),
    [
        (
            "batching",
            {"rows": 1500.0},
            {},
            "A step computed 5 tokens instead of 10, for seats whose answer has ended stay empty",
        ),
        ("batching", {"rows": 4500.0}, {}, "A step computed 15 tokens instead of 10, for waiting for a batch fills its steps"),
        ("batching", {}, {}, "the seats stay full anyway"),
        (
            "batching",
            {"steps": 600.0, "weight_bytes": 58e9},
            {},
            "read 600 times for 1,000 output tokens instead of 300 (58 MB",
        ),
        (
            "chunking",
            {},
            {"budget": 64},
            "A prompt of 125 uncached tokens reads the 97 MB of weights 2 times in steps of at most 64",
        ),
        ("chunking", {}, {"budget": 64}, "waiting for 14.4 GFLOP instead of 57.5 GFLOP"),
        ("chunking", {"decode_steps": 290.0}, {}, "3.3 % of the steps held prompt tokens instead of 70 %; in all, the 97 MB"),
        ("prefix", {}, {}, "The cache found 0.0 % of the prompts' tokens here: there was nothing to lose."),
        ("fusion", {}, {"num_ops": 500}, "A step is 500 ops with a barrier after each instead of 245"),
        ("kv", {}, {"kv_bytes_per_token": 12_240}, "A token's keys and values take 12,240 B instead of 23,040"),
        (
            "weights",
            {},
            {"weight_bytes": 269e6, "formats": ("bf16",)},
            "The weights are 269 MB (bf16) instead of 96.6 MB (q4_1, q8_0)",
        ),
        (
            "reservation",
            {"used_slots": 30.0},
            {},
            "holds 8,192 token slots, 189 MB, from its first step to its last: 97 % of the",
        ),
        ("speculation", {}, {}, "Nothing was guessed: steps of 10 tokens leave no room"),
        ("speculation", {"draft_tokens": 200.0, "accepted_tokens": 50.0}, {}, "25 % of 200 guessed tokens were right"),
    ],
)
def test_a_sentence_has_this_runs_numbers(
    technique: str, work: dict[str, float], facts: dict[str, object], expected: str
) -> None:
    arm = Side(change(WORK, **work), change(FACTS, **facts), 4.2)
    assert expected in reason(technique, BASE, arm)


def test_what_the_prefix_cache_saved_is_in_flops() -> None:
    base = Side(change(WORK, cached_tokens=1600.0), FACTS)
    text = reason("prefix", base, BASE)
    assert "found 80 % of the prompts' tokens; without it a prompt computes 125 tokens instead of 25, 22.5 GFLOP more" in text


def test_scores_in_memory_are_bytes() -> None:
    facts = change(
        FACTS, prompt=change(FACTS.prompt, activation_bytes=1651e6), decode=change(FACTS.decode, activation_bytes=51e6)
    )
    text = reason("attention", BASE, Side(WORK, facts))
    assert "1.13 GB more for a prompt of 512 tokens, beside 640 MB in all, and 35 MB more for a step of 16 decodes" in text
    assert "Here, each output token took 3 MB of activations instead of 3 MB." in text


def test_weights_are_reckoned_where_the_server_does_not_count_bytes() -> None:
    plain = Work(steps=300, rows=3000, output_tokens=1000, requests=16)
    assert Side(plain, FACTS).weights_per_output == pytest.approx(0.3 * FACTS.decode.weight_bytes)


def test_nothing_generated_divides_nothing() -> None:
    empty = Side(Work(), FACTS)
    for arm in every_arm(["f32"]):
        assert reason(arm.technique, empty, empty)


def test_quantities() -> None:
    assert [quantity(x) for x in (12, 1500, 96.6e6, 1.13e9)] == ["12 B", "1.50 kB", "96.6 MB", "1.13 GB"]


def test_facts_are_data() -> None:
    assert msgspec.json.decode(msgspec.json.encode(FACTS), type=Facts) == FACTS
