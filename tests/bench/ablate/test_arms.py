"""Arms: what they change, and how they are chosen and combined."""

from __future__ import annotations

import pytest

from forno.bench.ablate.arms import PASSES, chosen, combined, every_arm
from forno.errors import ConfigError
from forno.program.passes import default_passes


def test_passes_are_those_of_the_program() -> None:
    assert default_passes() == PASSES


def test_names_are_unique_and_fit_a_files_name() -> None:
    arms = every_arm(["bf16"], each_pass=True, models=["a/b.gguf", "c/"])
    names = [arm.name for arm in arms]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").replace("_", "").isalnum() for name in names)


def test_quantizing_is_an_arm_where_something_could_be_quantized() -> None:
    assert not [arm for arm in every_arm(["q4_1", "q8_0"]) if arm.technique == "weights"]
    assert [arm.flags for arm in every_arm(["f32", "bf16"]) if arm.technique == "weights"] == [
        ("--quantize", "int8"),
        ("--quantize", "int4"),
    ]
    (other,) = (arm for arm in every_arm(models=["/models/tiny.Q8_0.gguf"]) if arm.technique == "weights")
    assert (other.title, other.model) == ("tiny.Q8_0", "/models/tiny.Q8_0.gguf")


def test_choosing_by_name_and_by_technique() -> None:
    arms = every_arm()
    assert [arm.name for arm in chosen(arms, "batching, kv-int8", "dynamic")] == ["static", "kv-int8"]
    assert len(chosen(arms, "", "")) == len(arms)


@pytest.mark.parametrize(
    ("only", "skip", "message"),
    [("statik", "", "did you mean static"), ("", "nothing", "--skip: there is no 'nothing'"), ("kv", "kv", "leave nothing")],
)
def test_choices_that_mean_nothing(only: str, skip: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chosen(every_arm(), only, skip)


def test_a_combination_has_all_options() -> None:
    arms = {arm.name: arm for arm in every_arm()}
    both = combined([arms["kv-int8"], arms["ngram"]])
    assert both.flags == ("--kv-cache-dtype", "int8", "--speculative", "ngram")
    with pytest.raises(AssertionError):
        combined([arms["kv-int8"], arms["kv-float32"]])
