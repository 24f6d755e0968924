"""A comparison for a terminal: aligned text that says what is larger than the noise. It computes nothing."""

from __future__ import annotations

from forno.bench.compare import Comparison, Pair, Row
from forno.bench.numbers import plural, short, shown, signed

VERDICTS = {"better": "yes, better", "worse": "yes, WORSE", "noise": "no", "unknown": "cannot tell"}
ONE_RUN = {"better": "better, if other runs agree", "worse": "WORSE, if other runs agree"}
"""The same where the noise between runs is not known."""
BASES = {
    "pairs": "repeats, one by one: each has the seed of its counterpart (Student's t)",
    "repeats": "repeats (Welch's t)",
    "requests": "ONE run each: its requests drawn again, conversations whole, what both asked together (bootstrap)",
    "slices": "ONE run each: ten slices of its window (batch means)",
    "nothing": "too little was measured to know the noise: repeat the runs, or make them longer",
}
"""What an interval rests on, in words."""
HONEST = "One run does not show what changes between runs, such as other work on the machine: use --repeats 3 or more to know."
CHANCE = "Intervals are of 95 %: of twenty metrics that did not change, about one looks as if it had."


def as_text(comparison: Comparison) -> str:
    """All loads with their tables, warnings before, what the noise is behind."""
    a, b = (short(name, 60) for name in comparison.names)
    lines = [f"a  {a}", f"b  {b}", ""]
    lines += [f"! {warning}" for warning in comparison.warnings] + [""] * bool(comparison.warnings)
    for pair in comparison.pairs:
        lines += [_heading(pair), *_table(pair.rows), ""]
    return "\n".join([*lines, *notes(comparison)])


def _heading(pair: Pair) -> str:
    repeats = pair.repeats
    told = plural(repeats[0], "run") + " each" if repeats[0] == repeats[1] else f"{plural(repeats[0], 'run')} and {repeats[1]}"
    invalid = [name for name, bad in zip("ab", pair.invalid, strict=True) if bad]
    return f"{short(pair.load)} ({told})" + (f"; NOT VALID: {' and '.join(invalid)}" if invalid else "")


def cells(row: Row) -> tuple[str, ...]:
    """A row's columns: title, a, b, change, its interval, verdict."""
    percent = row.metric.endswith("_share")
    a, b = ((f"{100 * v:.1f} %" if percent else shown(v)) for v in (row.a, row.b))
    change = signed(100 * (row.b - row.a), 2) + " pt" if percent else _relative(row, row.b - row.a)
    if row.low is None or row.high is None:
        interval = ""
    elif percent:
        interval = f"{signed(100 * row.low, 2)} to {signed(100 * row.high, 2)} pt"
    elif row.a:
        interval = f"{_relative(row, row.low)} to {_relative(row, row.high)}"
    else:
        interval = f"{signed(row.low)} to {signed(row.high)}"
    return row.title, a, b, change, interval, verdict(row)


def verdict(row: Row) -> str:
    """Whether the difference is larger than the noise, in words."""
    words = {**VERDICTS, **ONE_RUN} if row.basis in ("requests", "slices") else VERDICTS
    return words[row.verdict]


def _relative(row: Row, change: float) -> str:
    """A change in percent of ``a``, to a tenth below 10 %."""
    if not row.a:
        return signed(change)
    percent = 100 * change / abs(row.a)
    return f"{'+' if percent > 0 else '−' if percent < 0 else '±'}{abs(percent):.{1 if abs(percent) < 10 else 0}f} %"


HEADER = ("", "a", "b", "b − a", "95 % interval", "larger than the noise?")


def _table(rows: list[Row]) -> list[str]:
    table = [HEADER, *map(cells, rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(HEADER))]
    return [
        "  "
        + "  ".join(text.ljust(width) if i in (0, 5) else text.rjust(width) for i, (text, width) in enumerate(columns)).rstrip()
        for line in table
        for columns in [list(zip(line, widths, strict=True))]
    ]


def notes(comparison: Comparison) -> list[str]:
    """What the noise was taken from, honestly."""
    bases = {row.basis for pair in comparison.pairs for row in pair.rows}
    lines = [f"Noise from {BASES[basis]}." for basis in BASES if basis in bases and basis != "nothing"]
    if "nothing" in bases:
        lines.append(f"Where it says {VERDICTS['unknown']!r}, {BASES['nothing']}.")
    if bases & {"requests", "slices"}:
        lines.append(HONEST)
    return [*lines, CHANCE]
