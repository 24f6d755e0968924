"""What a model's ``generation_config.json`` says about sampling: the defaults of requests that say nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forno.errors import RequestError
from forno.request import SamplingParams

SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``SamplingParams`` that the model sets; values that make no sense are left to forno's own defaults."""
    found = {k: generation_config[k] for k in SAMPLING_DEFAULTS if _makes_sense(k, generation_config.get(k))}
    if generation_config.get("do_sample") is False:
        found["temperature"] = 0.0
    return found


def _makes_sense(name: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if name == "top_k" else (int, float)):
        return False
    try:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    except RequestError:
        return False
    return True
