"""When requests are sent: a fixed number of clients, or an arrival process whose rate may change with time.

It knows times, not requests. An arrival process is a sequence of gaps with mean 1, and the rate of the load says how fast
that clock runs: arrival k comes when the integral of the rate reaches the sum of the first k gaps. For exponential gaps that
is exactly the Poisson process with that rate (Cinlar, Introduction to Stochastic Processes, 1975, section 4.7); other gaps
keep their shape while the rate changes.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from forno.errors import ConfigError

PROCESSES = ("poisson", "gamma", "constant")
FORMS = "RATE, RATE-RATE@SECONDS (a ramp), or stages such as 2@30,8@20,2@30"
"""What ``parse_stages`` understands, for help texts."""


@dataclass(frozen=True, slots=True)
class Closed:
    """Clients that ask, read the answer to its end, and ask again."""

    clients: int
    ramp_seconds: float = 0.0
    """Time over which the clients start, evenly; 0: all at once."""

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise ConfigError(f"a closed loop needs at least 1 client, got {self.clients}")
        _check_seconds(self.ramp_seconds, "the ramp of a closed loop")

    @property
    def value(self) -> float:
        """The load's one number: clients."""
        return float(self.clients)

    @property
    def words(self) -> str:
        ramp = f", started over {self.ramp_seconds:g} s" if self.ramp_seconds else ""
        return f"closed, {self.clients} client{'s' if self.clients > 1 else ''}{ramp}"

    def start(self, client: int) -> float:
        """Seconds since the run's start at which client number ``client`` sends its first request."""
        return self.ramp_seconds * client / self.clients


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of an open load."""

    rate: float
    """Requests per second at its start."""
    seconds: float = math.inf
    end_rate: float | None = None
    """Requests per second at its end, reached in a straight line; None: the rate does not change."""

    def __post_init__(self) -> None:
        rates = (self.rate, self.last_rate)
        if not all(math.isfinite(rate) and 0 <= rate <= 1e6 for rate in rates):
            raise ConfigError(f"rates must lie between 0 and 1e6 requests per second, got {' and '.join(map(str, rates))}")
        if not self.seconds > 0:
            raise ConfigError(f"a stage must last longer than {self.seconds:g} s")
        if math.isinf(self.seconds) and self.last_rate != self.rate:
            raise ConfigError("a ramp needs an end: write RATE-RATE@SECONDS")

    @property
    def last_rate(self) -> float:
        return self.rate if self.end_rate is None else self.end_rate

    @property
    def expected(self) -> float:
        """Requests that it sends on average."""
        if math.isinf(self.seconds):
            return math.inf if self.rate else 0.0
        return self.seconds * (self.rate + self.last_rate) / 2

    def time_of(self, count: float) -> float:
        """Seconds since the stage's start until ``count`` requests are expected, ``count < expected``."""
        if not count:
            return 0.0
        if self.last_rate == self.rate:
            return count / self.rate
        # a root of rate * t + slope * t^2 / 2 = count, in the form that does not cancel
        slope = (self.last_rate - self.rate) / self.seconds
        return 2 * count / (self.rate + math.sqrt(max(0.0, self.rate**2 + 2 * slope * count)))

    @property
    def words(self) -> str:
        rate = f"{self.rate:g}" if self.last_rate == self.rate else f"{self.rate:g} to {self.last_rate:g}"
        return rate if math.isinf(self.seconds) else f"{rate} for {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class Open:
    """Arrivals that wait for nobody: a slow server meets a longer queue, as it would in service."""

    stages: tuple[Stage, ...]
    process: str = "poisson"
    """``poisson``, ``gamma`` (shape ``burstiness``) or ``constant`` (evenly spaced, the first at once)."""
    burstiness: float = 1.0
    """Shape of gamma gaps, whose variance it divides: 1 is Poisson, less comes in bursts, more comes evenly."""

    def __post_init__(self) -> None:
        if self.process not in PROCESSES:
            raise ConfigError(f"arrivals must be one of {', '.join(PROCESSES)}, got {self.process!r}")
        if not (math.isfinite(self.burstiness) and self.burstiness > 0):
            raise ConfigError(f"burstiness must be a number above 0, got {self.burstiness}")
        if self.burstiness != 1 and self.process != "gamma":
            raise ConfigError(f"burstiness is the shape of gamma arrivals; {self.process} arrivals have none")
        if not self.stages or not any(stage.expected for stage in self.stages):
            raise ConfigError("an open load needs a stage with a rate above 0")
        if any(math.isinf(stage.seconds) for stage in self.stages[:-1]):
            raise ConfigError("only the last stage may have no end")

    @property
    def seconds(self) -> float:
        """Until the last stage ends; may be infinite."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def value(self) -> float:
        """The load's one number: requests per second, averaged over the stages; the last one's if it has no end."""
        last = self.stages[-1]
        return last.rate if math.isinf(last.seconds) else sum(stage.expected for stage in self.stages) / self.seconds

    @property
    def words(self) -> str:
        shape = f" of burstiness {self.burstiness:g}" if self.process == "gamma" else ""
        return f"{self.process}{shape}, {', then '.join(stage.words for stage in self.stages)} requests/s"

    def times(self, seed: int) -> Iterator[tuple[float, int]]:
        """Arrivals in order: seconds since the run's start, and the number of the stage. Endless if the last stage is."""
        elapsed = itertools.accumulate(self._gaps(random.Random(f"{seed}:arrivals")))
        wanted, passed, started = next(elapsed), 0.0, 0.0
        for number, stage in enumerate(self.stages):
            while wanted - passed < stage.expected:
                yield started + stage.time_of(wanted - passed), number
                wanted = next(elapsed)
            passed, started = passed + stage.expected, started + stage.seconds

    def _gaps(self, rng: random.Random) -> Iterator[float]:
        """Independent gaps with mean 1; the first of a constant process is 0."""
        if self.process == "constant":
            return itertools.chain([0.0], itertools.repeat(1.0))
        shape = self.burstiness
        draw: Callable[[], float] = (
            (lambda: rng.gammavariate(shape, 1 / shape)) if self.process == "gamma" else (lambda: rng.expovariate(1.0))
        )
        return iter(draw, None)


def parse_stages(text: str) -> tuple[Stage, ...]:
    """Stages as written on the command line: ``4``, ``1-16@60``, ``2@30,8@20,2@30``. Raises ``ConfigError``."""
    return tuple(_parse_stage(part.strip(), text) for part in text.split(","))


def _parse_stage(part: str, whole: str) -> Stage:
    rates, at, seconds = part.partition("@")
    first, dash, last = rates.partition("-")
    try:
        return Stage(float(first), float(seconds) if at else math.inf, float(last) if dash else None)
    except ValueError:
        raise ConfigError(f"rate {whole!r}: cannot read {part!r}; write {FORMS}") from None


def _check_seconds(seconds: float, what: str) -> None:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ConfigError(f"{what} must be a finite time, at least 0 s, got {seconds}")
