"""A real runner on a clock of its own: what a step takes depends on its rows alone, however busy the machine is.

Where the scheduler learns from times (drafts, pacing, admission), what it decides is the same in every run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forno.request import Runner, StepPlan, StepResult

STEP_SECONDS = 0.01
ROW_SECONDS = 0.0005
"""A step of few rows waits for the weights' bytes; each row adds a little."""


class SteadyRunner:
    """``runner`` in everything but ``StepResult.seconds``."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def run(self, plan: StepPlan) -> StepResult:
        return replace(self._runner.run(plan), seconds=STEP_SECONDS + ROW_SECONDS * plan.num_tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)
