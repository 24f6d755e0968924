"""Measurements of kernels as tables, held against the targets. Measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.kernels.steps import Measurement
from benchmarks.measure import table
from forno.program.formats import FORMATS


@dataclass(frozen=True, slots=True)
class Class:
    """Measurements that share a target."""

    name: str
    target: float | None
    """Fraction of the limit; None where none was set."""
    holds: Callable[[Measurement], bool]


def _blocks(m: Measurement) -> bool:
    """A linear whose weights and activations share scales in blocks of at most 256."""
    form = FORMATS.get(m.codec)
    return m.kernel == "linear" and form is not None and form.activation == "s8"


def _channels(m: Measurement) -> bool:
    """A linear with int8 weights and activations, a scale per output and per row."""
    form = FORMATS.get(m.codec)
    return m.kernel == "linear" and form is not None and form.activation == "s8_row"


def _floats(m: Measurement) -> bool:
    return m.kernel == "linear" and m.codec in FORMATS and FORMATS[m.codec].unit != "int8"


CLASSES = (
    Class("linear, M=1, blocks", 0.85, lambda m: _blocks(m) and m.rows == 1),
    Class("linear, M=1, channels", 0.85, lambda m: _channels(m) and m.rows == 1),
    Class("linear, M=1, floats", 0.85, lambda m: _floats(m) and m.rows == 1),
    Class("linear, M=64, blocks", 0.70, lambda m: _blocks(m) and m.rows == 64),
    Class("linear, M=64, channels", 0.85, lambda m: _channels(m) and m.rows == 64),
    Class("linear, M=64, floats", None, lambda m: _floats(m) and m.rows == 64),
    Class("attention, decode B=1", None, lambda m: m.kind.startswith("decode") and m.rows == 1),
    Class("attention, decode B=64", 0.80, lambda m: m.kind.startswith("decode") and m.rows == 64),
    Class("attention, prefill", None, lambda m: m.kind.startswith("prefill")),
    Class("everything else, 64 rows", None, lambda m: m.kernel not in ("linear", "attention") and m.rows == 64),
)
"""The targets of issue 3 of the project, and neighbours that show where they are lost."""


def detail(measured: Sequence[Measurement]) -> str:
    """Lines by number of rows, columns by kind: microseconds, rate, fraction of the limit."""
    kinds = list(dict.fromkeys(m.kind for m in measured))
    cells = {(m.rows, m.kind): f"{m.us:.1f} us {m.rate / 1e9:4.0f} G{m.unit:4} {m.fraction:4.0%}" for m in measured}
    rows = sorted({m.rows for m in measured})
    return table(["rows", *kinds], ([str(r), *(cells.get((r, k), "") for k in kinds)] for r in rows))


def summary(measured: Iterable[Measurement]) -> str:
    """A line per class: the least and the median fraction of the limit, and that of all its time, next to the target."""
    found = list(measured)
    rows = [_line(c, members) for c in CLASSES if (members := [m for m in found if c.holds(m)])]
    return table(["fraction of the limit", "least", "where", "median", "in all", "target"], rows)


def _line(c: Class, members: Sequence[Measurement]) -> list[str]:
    least = min(members, key=lambda m: m.fraction)
    in_all = sum(m.limit_us for m in members) / sum(m.us for m in members)
    where = f"{least.model} {least.codec} {least.kind}"
    target = "" if c.target is None else f"{c.target:.0%}"
    return [
        c.name,
        f"{least.fraction:.0%}",
        where,
        f"{statistics.median(m.fraction for m in members):.0%}",
        f"{in_all:.0%}",
        target,
    ]


def as_json(measured: Iterable[Measurement]) -> list[dict[str, Any]]:
    return [{k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(m).items()} for m in measured]
