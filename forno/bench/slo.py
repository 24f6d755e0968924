"""Service-level objectives as they are written: limits on a request's latencies in milliseconds. It measures nothing."""

from __future__ import annotations

import math

from forno.bench.measures import SLO_METRICS
from forno.errors import ConfigError

_ALIASES = {"e2el": "e2e"}
PRESETS: dict[str, dict[str, float]] = {
    "llama2-70b": {"ttft": 2000, "tpot": 200},
    "llama2-70b-interactive": {"ttft": 450, "tpot": 40},
    "mixtral-8x7b": {"ttft": 2000, "tpot": 200},
    "llama3.1-405b": {"ttft": 6000, "tpot": 175},
    "llama3.1-405b-interactive": {"ttft": 4500, "tpot": 80},
    "llama3.1-8b": {"ttft": 2000, "tpot": 100},
    "llama3.1-8b-interactive": {"ttft": 500, "tpot": 30},
    "deepseek-r1": {"ttft": 2000, "tpot": 80},
    "deepseek-r1-interactive": {"ttft": 1500, "tpot": 15},
    "gpt-oss-120b": {"ttft": 3000, "tpot": 80},
}
"""MLPerf Inference's limits for its server and interactive scenarios. There they hold for the 99th percentile of requests."""
FORMS = f"ttft=200,tpot=50 (milliseconds; of {', '.join(SLO_METRICS)}), or one of {', '.join(PRESETS)}"


def parse(text: str) -> dict[str, float]:
    """Limits as written on the command line; ``ttft:200 tpot:50`` of other tools too. Raises ``ConfigError``."""
    if text in PRESETS:
        return dict(PRESETS[text])
    limits: dict[str, float] = {}
    for part in text.replace(",", " ").split():
        name, _, number = part.replace(":", "=").partition("=")
        name = _ALIASES.get(name, name)
        try:
            limits[name] = float(number)
        except ValueError:
            raise ConfigError(f"SLO {text!r}: cannot read {part!r}; write {FORMS}") from None
        if name not in SLO_METRICS or not 0 < limits[name] < math.inf:
            raise ConfigError(f"SLO {text!r}: {part!r} is not a limit; write {FORMS}")
    if not limits:
        raise ConfigError(f"SLO {text!r} has no limit; write {FORMS}")
    return limits
