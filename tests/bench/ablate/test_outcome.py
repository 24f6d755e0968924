"""From measurements to ratios and to a recommendation."""

from __future__ import annotations

import pytest

from forno.bench.ablate.accuracy import Accuracy
from forno.bench.ablate.arms import every_arm
from forno.bench.ablate.noise import Ratio
from forno.bench.ablate.outcome import Objective, candidates, compare, moved_words, said
from forno.bench.ablate.study import Measured
from tests.bench.ablate.made import baseline, measured, visit

ARMS = {arm.name: arm for arm in every_arm(["bf16"])}


def arm_of(name: str, *tokens_per_s: float, kl: float | None = None) -> Measured:
    made = measured(ARMS[name], *(visit(n, value, ttft=100.0) for n, value in enumerate(tokens_per_s)))
    if kl is not None:
        made.accuracy = Accuracy(kl=kl, worst=kl, same_choice=1, covered=1, positions=9, identical=False)
    return made


def test_ratios_are_to_both_baselines_of_a_round() -> None:
    alone, (faster, same) = compare(baseline(), [arm_of("ngram", 150, 151, 149), arm_of("kv-int8", 100, 100.4, 99.8)])
    assert faster.ratios["output_tokens_per_s"].value == pytest.approx(1.5, rel=0.01)
    assert faster.ratios["output_tokens_per_s"].real
    assert faster.ratios["ttft_p50_ms"].value == pytest.approx(2.0)
    assert not same.ratios["output_tokens_per_s"].real
    assert "goodput_per_s" not in faster.ratios
    assert alone.ratios["output_tokens_per_s"].value == 1.0
    assert not alone.ratios["output_tokens_per_s"].real


def test_an_arm_that_was_never_measured_has_no_numbers() -> None:
    alone, (found,) = compare(baseline(), [Measured(arm=ARMS["static"], error="it did not start")])
    assert (found.values, found.ratios) == ({}, {})
    assert moved_words(found, alone) == "nothing moved beyond the noise"


def test_the_best_of_each_technique_is_combined() -> None:
    others = [
        arm_of("chunk-64", 110, 111, 109),
        arm_of("chunk-512", 130, 131, 129),
        arm_of("ngram", 150, 151, 149),
        arm_of("static", 80, 81, 79),
        arm_of("no-fusion", 160, 161, 159),
        arm_of("kv-int8", 120, 121, 119, kl=0.5),
        arm_of("weights-int8", 120, 121, 119, kl=0.001),
    ]
    alone, found = compare(baseline(), others)
    chosen = candidates(Objective.of({}, 0.02), alone, found, others)
    assert [arm.name for arm in chosen] == ["ngram", "chunk-512", "weights-int8"]


def test_with_limits_goodput_counts_and_anything_is_better_than_none() -> None:
    base, other = baseline(goodput=0.0), measured(ARMS["ngram"], *(visit(n, 90.0, goodput=3.0) for n in range(3)))
    alone, found = compare(base, [other])
    objective = Objective.of({"ttft": 200.0}, 0.02)
    assert objective.metric.name == "goodput_per_s"
    assert candidates(objective, alone, found, [other]) == [ARMS["ngram"]]


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (Ratio(value=1.42, low=1.04, high=1.93), "+42 % (+4.0 to +93)"),
        (Ratio(value=0.95, low=0.93, high=0.9704), "−5.0 % (−7.0 to −3.0)"),
        (Ratio(value=1.5), "+50 %"),
        (Ratio(value=48.2, low=38.4, high=61.1), "× 48 (38 to 61)"),
    ],
)
def test_ratios_in_words(ratio: Ratio, text: str) -> None:
    assert said(ratio) == text


def test_the_largest_change_is_named_first() -> None:
    alone, (found,) = compare(baseline(), [arm_of("static", 60, 61, 59)])
    assert moved_words(found, alone).startswith("TTFT p50 +100 % (")
    assert "output −40 % (−" in moved_words(found, alone)


def test_what_vanished_is_named_though_it_has_no_ratio() -> None:
    other = measured(ARMS["static"], *(visit(n, goodput=0.0) for n in range(3)))
    alone, (found,) = compare(baseline(goodput=3.0), [other])
    assert moved_words(found, alone).startswith("no goodput at all")
