"""Limits as people write them."""

from __future__ import annotations

import pytest

from forno.bench import slo
from forno.bench.measures import SLO_METRICS
from forno.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("ttft=200,tpot=50", {"ttft": 200, "tpot": 50}),
        ("ttft:200 tpot:50", {"ttft": 200, "tpot": 50}),
        ("e2e=1.5e3", {"e2e": 1500}),
        ("e2el:1500", {"e2e": 1500}),
        ("llama3.1-8b-interactive", {"ttft": 500, "tpot": 30}),
    ],
)
def test_forms(text: str, limits: dict[str, float]) -> None:
    assert slo.parse(text) == limits


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=", "ttft=fast", "ttft=-1", "ttft=0", "ttft=nan", "ttft=inf", "speed=3", "gpt-9"]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="ttft=200,tpot=50"):
        slo.parse(text)


def test_presets_limit_what_is_measured() -> None:
    for limits in slo.PRESETS.values():
        assert limits.keys() <= set(SLO_METRICS)
