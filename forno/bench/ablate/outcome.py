"""What a study found: each arm's metrics against the baseline's, with the noise, and the setting that serves best.

It knows measurements and an objective; it starts nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import fmean

import msgspec

from forno.bench.ablate import noise
from forno.bench.ablate.arms import BASELINE, Arm
from forno.bench.ablate.noise import Ratio
from forno.bench.ablate.study import Measured, Visit
from forno.bench.numbers import shown
from forno.bench.records import Distribution, Summary


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of one visit that arms are compared in."""

    name: str
    title: str
    unit: str
    lower: bool
    """Whether less is better."""
    of: Callable[[Visit], float | None]


def _latency(name: str, statistic: str, title: str) -> Metric:
    def of(visit: Visit) -> float | None:
        found: Distribution | None = getattr(visit.run.summary, f"{name}_ms")
        return None if found is None else float(getattr(found, statistic))

    return Metric(f"{name}_{statistic}_ms", title, "ms", True, of)


def _rate(name: str, title: str, unit: str) -> Metric:
    def of(visit: Visit) -> float | None:
        summary: Summary = visit.run.summary
        found: float | None = getattr(summary, name)
        return found

    return Metric(name, title, unit, False, of)


METRICS = (
    _latency("ttft", "p50", "TTFT p50"),
    _latency("ttft", "p99", "TTFT p99"),
    _latency("itl", "p99", "ITL p99"),
    _latency("tpot", "p50", "TPOT p50"),
    _rate("output_tokens_per_s", "output", "tok/s"),
    _rate("goodput_per_s", "goodput", "req/s"),
    Metric("peak_memory", "memory", "MB", True, lambda visit: visit.peak_memory),
)
MANY = 5.0
"""Times: what is larger is said as a factor, not in percent."""
BY_NAME = {metric.name: metric for metric in METRICS}


class Found(msgspec.Struct, kw_only=True):
    """One arm, compared."""

    arm: Arm
    values: dict[str, float] = {}
    """Metric to its mean over rounds."""
    ratios: dict[str, Ratio] = {}
    """Metric to this arm over the baseline."""

    def moved(self) -> list[tuple[Metric, Ratio]]:
        """What differs by more than the noise."""
        return [(BY_NAME[name], ratio) for name, ratio in self.ratios.items() if ratio.real]


def compare(baseline: Measured, others: Sequence[Measured]) -> tuple[Found, list[Found]]:
    """The baseline's numbers, and each arm's with their ratios. Arms without a whole round have none."""
    rounds = sorted({visit.round for visit in baseline.visits})
    ends = [[v for v in baseline.visits if v.round == number] for number in rounds]
    alone = Found(arm=baseline.arm, values=_means(baseline.visits))
    found = {m.arm.name: Found(arm=m.arm, values=_means(m.visits)) for m in others}
    for metric in METRICS:
        first, last = ([metric.of(visits[i]) for visits in ends] for i in (0, -1))
        # What the baseline makes of itself shows the noise too; a difference of two numbers has 2, not 3/2, of their variance.
        own = [value * (3 / 4) ** 0.5 for value in noise.log_ratios(first, last, last)]
        groups: dict[str, Sequence[float]] = {BASELINE: own}
        for measured in others:
            by_round = {visit.round: metric.of(visit) for visit in measured.visits}
            groups[measured.arm.name] = noise.log_ratios([by_round.get(number) for number in rounds], first, last)
        for name, ratio in noise.ratios(groups).items():
            (alone if name == BASELINE else found[name]).ratios[metric.name] = ratio
    alone.ratios = {name: _around_one(ratio) for name, ratio in alone.ratios.items()}
    return alone, list(found.values())


def _around_one(ratio: Ratio) -> Ratio:
    """The baseline is what it is; what is left is how far off one comparison may be."""
    width = 1.0 + ratio.spread
    return Ratio(value=1.0, low=1.0 / width, high=width) if isfinite(width) else Ratio(value=1.0)


def _means(visits: Sequence[Visit]) -> dict[str, float]:
    values = {metric.name: [v for visit in visits if (v := metric.of(visit)) is not None] for metric in METRICS}
    return {name: fmean(those) for name, those in values.items() if those}


@dataclass(frozen=True, slots=True)
class Objective:
    """What the best setting is best in."""

    metric: Metric
    max_kl: float
    """Largest divergence of predictions that a setting may have, in nats per token."""

    @classmethod
    def of(cls, slo: Mapping[str, float], max_kl: float) -> Objective:
        """Goodput where there are limits, else throughput."""
        return cls(BY_NAME["goodput_per_s" if slo else "output_tokens_per_s"], max_kl)

    def gain(self, found: Found, baseline: Found) -> float | None:
        """How many times as good as the baseline; None unless that is beyond the noise, and better."""
        ratio, name = found.ratios.get(self.metric.name), self.metric.name
        if baseline.values.get(name) == 0.0 and found.values.get(name, 0.0) > 0:
            return inf
        if ratio is None or not ratio.real or ratio.value <= 1.0:
            return None
        return ratio.value


def candidates(objective: Objective, baseline: Found, found: Sequence[Found], measured: Sequence[Measured]) -> list[Arm]:
    """The best arm of each technique that improves the objective, is an option, and keeps the predictions."""
    by_name = {m.arm.name: m for m in measured}
    best: dict[str, tuple[float, Arm]] = {}
    for one in found:
        gain, kept = objective.gain(one, baseline), by_name[one.arm.name].accuracy
        if gain is None or not one.arm.worth or (kept is not None and kept.kl > objective.max_kl):
            continue
        if one.arm.technique not in best or gain > best[one.arm.technique][0]:
            best[one.arm.technique] = (gain, one.arm)
    return [arm for _, arm in sorted(best.values(), key=lambda pair: -pair[0])]


def said(ratio: Ratio) -> str:
    """``+42 % (+30 to +55)`` or ``× 48 (38 to 61)``: the change and its interval, as far as that is known."""
    ends = [end for end in (ratio.low, ratio.high) if end is not None]
    if ratio.value >= MANY:
        return f"× {shown(ratio.value, 2)}" + (f" ({' to '.join(shown(end, 2) for end in ends)})" if ends else "")
    return f"{change(ratio.value)} %" + (f" ({' to '.join(change(end) for end in ends)})" if ends else "")


def change(ratio: float) -> str:
    """A ratio as a change in percent, without the sign of percent: ``+42``, ``−5.0``."""
    percent = 100 * (ratio - 1)
    return f"{'+' if percent >= 0 else '−'}{abs(percent):.{0 if abs(percent) >= 9.95 else 1}f}"


def brief(ratio: Ratio) -> str:
    """The same for a table's cell: ``+42%``, ``×48``."""
    return f"×{shown(ratio.value, 2)}" if ratio.value >= MANY else f"{change(ratio.value)}%"


def moved_words(found: Found, baseline: Found) -> str:
    """What moved, the largest change first."""
    moved = sorted(found.moved(), key=lambda pair: -max(pair[1].value, 1 / pair[1].value))
    words = [f"{metric.title} {said(ratio)}" for metric, ratio in moved]
    gone = [BY_NAME[name].title for name, value in found.values.items() if value == 0.0 and baseline.values.get(name)]
    return ", ".join([*(f"no {title} at all" for title in gone), *words]) or "nothing moved beyond the noise"
