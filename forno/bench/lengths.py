"""Lengths by distribution, written as on the command line: ``512``, ``uniform:100:900``, ``lognormal:512:0.5``.

It knows numbers and a random generator, not what they measure.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from forno.errors import ConfigError

FORMS = "NUMBER, uniform:LOW:HIGH or lognormal:MEAN:SIGMA[:LARGEST]"
"""What is understood, for help texts."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Numbers that are not negative."""

    kind: str
    """``constant``, ``uniform`` or ``lognormal``."""
    low: float
    """The constant; a uniform's least value; a lognormal's mean before its largest value cuts it."""
    high: float
    """What no draw exceeds; may be infinite."""
    sigma: float = 0.0

    @property
    def mean(self) -> float:
        """Of all draws, but for what a lognormal's largest value cuts."""
        return (self.low + self.high) / 2 if self.kind == "uniform" else self.low

    def draw(self, rng: random.Random) -> float:
        if self.kind == "uniform":
            return rng.uniform(self.low, self.high)
        if self.kind == "lognormal":
            return min(self.high, rng.lognormvariate(math.log(self.low) - self.sigma**2 / 2, self.sigma))
        return self.low

    def whole(self, rng: random.Random) -> int:
        """A draw as a count, at least 1; all whole numbers of a uniform are equally likely."""
        if self.kind == "uniform":
            return max(1, rng.randint(math.ceil(self.low), math.floor(self.high)))
        return max(1, round(self.draw(rng)))


def parse(text: str, name: str) -> Distribution:
    """The distribution that ``text`` says. Raises ``ConfigError`` that names the option ``name``.

    ``uniform`` includes both ends. ``lognormal`` takes its mean (not its median) and the standard deviation of its logarithm:
    0.5 puts two thirds of the draws between 0.54 and 1.45 means; draws above LARGEST are cut to it.
    """
    kind, *parts = text.split(":") if ":" in text else ("constant", text)
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        raise ConfigError(f"{name} {text!r}: not a number; write {FORMS}") from None
    if not all(math.isfinite(number) and 0 <= number <= 1e9 for number in numbers):
        raise ConfigError(f"{name} {text!r}: numbers must lie between 0 and 1e9")
    match kind, numbers:
        case "constant", [value]:
            return Distribution(kind, value, value)
        case "uniform", [low, high] if math.ceil(low) <= math.floor(high):
            return Distribution(kind, low, high)
        case "lognormal", [mean, sigma] if mean > 0 and sigma <= 5:
            return Distribution(kind, mean, math.inf, sigma)
        case "lognormal", [mean, sigma, largest] if 0 < mean <= largest and sigma <= 5:
            return Distribution(kind, mean, largest, sigma)
    raise ConfigError(f"{name} {text!r} is not a distribution; write {FORMS}")
