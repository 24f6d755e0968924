"""Typed reads from an untrusted ``config.json``: a bad field is an error that names it, never a surprise later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forno.errors import CheckpointError

# An order of magnitude above any published model: a config beyond these is damaged, and is refused before anything is
# allocated for it.
MAX_LAYERS = 1 << 10
MAX_WIDTH = 1 << 18
MAX_INTERMEDIATE = 1 << 20
MAX_VOCAB = 1 << 22
MAX_POSITIONS = 1 << 27


class Fields:
    """Typed reads from an untrusted mapping; each raises ``CheckpointError`` naming the field."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def integer(self, name: str, high: int, default: int | None = None) -> int:
        """An int in [1, ``high``]; absent or null gives ``default``, or an error if there is none."""
        value = self.config.get(name)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"the model's config has no {name}")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise CheckpointError(f"{name} must be a whole number from 1 to {high}, got {value!r}")
        return value

    def number(self, name: str, low: float, high: float, default: float) -> float:
        """A finite number in [``low``, ``high``]."""
        value = self.config.get(name)
        return checked_number(name, default if value is None else value, low, high)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise CheckpointError(f"{name} must be true or false, got {value!r}")
        return default if value is None else value


def checked_number(name: str, value: Any, low: float, high: float) -> float:
    """``value`` as a float in [``low``, ``high``], or ``CheckpointError`` naming it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:  # NaN fails
        raise CheckpointError(f"{name} must be a number from {low:g} to {high:g}, got {value!r}")
    return float(value)
