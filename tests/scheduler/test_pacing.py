"""The token budget: what a step may take beside its decodes, on machines of any speed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forno.config import LEAST_MIXED, SchedulerConfig
from forno.errors import ConfigError
from forno.scheduler.pacing import WEIGHTS, Pacing

CONFIG = SchedulerConfig(max_num_batched_tokens=2048, mixed_step_stretch=2.0)


def test_without_decodes_or_a_limit_the_budget_is_the_whole_step() -> None:
    assert Pacing(CONFIG).budget(0, 5) == 2048
    assert Pacing(replace(CONFIG, mixed_step_stretch=0.0)).budget(16, 1) == 2048
    assert Pacing(replace(CONFIG, enable_chunked_prefill=False)).budget(16, 1) == 2048


def taught(decode: float, prompt: float, decodes: int) -> Pacing:
    """After steps of a machine on which a decode and a prompt token take so many seconds."""
    pacing = Pacing(CONFIG)
    for _ in range(40):
        pacing.budget(decodes, 0)
        pacing.observe(decodes, decode * (decodes + WEIGHTS))
        pacing.budget(decodes, 1)
        pacing.observe(decodes + 64, decode * (decodes + WEIGHTS) + 64 * prompt)
    return pacing


@given(st.floats(1e-5, 1e-2), st.floats(0.2, 4.0), st.integers(16, 64))
def test_one_prompt_makes_steps_twice_as_long_whatever_the_machine(decode: float, ratio: float, decodes: int) -> None:
    prompt = decode / ratio
    budget = taught(decode, prompt, decodes).budget(decodes, 1)
    alone = decode * (decodes + WEIGHTS)
    step = alone + (budget - decodes) * prompt
    assert step < 2.4 * alone or budget == LEAST_MIXED
    assert step > 1.9 * alone - prompt or budget == 2048


def test_a_prompt_deep_in_its_context_gets_smaller_chunks() -> None:
    shallow, deep = taught(3e-4, 2e-4, 16), taught(3e-4, 5e-4, 16)
    assert deep.budget(16, 1) < shallow.budget(16, 1)


def test_prompts_get_more_where_more_of_them_wait() -> None:
    pacing = taught(3e-4, 2e-4, 16)
    budgets = [pacing.budget(16, waiting) for waiting in (1, 4, 16, 64)]
    assert budgets == sorted(set(budgets))
    assert pacing.budget(1, 1000) == 2048


def test_steps_that_tell_nothing_teach_nothing() -> None:
    pacing = taught(3e-4, 2e-4, 16)
    before = pacing.budget(16, 1)
    pacing.observe(16 + 64, 0.0)
    pacing.observe(16 + 1, 10.0)
    assert pacing.budget(16, 1) == before


def test_a_stretch_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--mixed-step-stretch must be 0 or at least 1, got 0\.5"):
        SchedulerConfig(mixed_step_stretch=0.5)
