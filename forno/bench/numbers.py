"""Numbers for people: few digits, thousands apart. It knows no metric."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite


def shown(value: float | None, digits: int = 3) -> str:
    """That many significant digits, never an exponent; a dash for what was not measured."""
    if value is None or not isfinite(value):
        return "–"
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".rpartition("e")[2])  # of the rounded value: 9.996 is 10.0
    places = max(0, digits - 1 - exponent)
    text = f"{value:,.{min(places, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text and value == round(value) else text


def signed(value: float, digits: int = 3) -> str:
    """The same with its sign, infinity spelled out."""
    if not isfinite(value):
        return "unknown"
    return ("+" if value > 0 else "−" if value < 0 else "±") + shown(abs(value), digits)


def quantity(value: float, unit: str = "B") -> str:
    """``96.6 MB``: three digits with a decimal prefix."""
    for power, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 0.9995 * 10**power:
            return f"{shown(value / 10**power)} {prefix}{unit}"
    return f"{shown(value)} {unit}".rstrip()


def percent(share: float) -> str:
    """``97 %``, with a decimal below 10."""
    return f"{100 * share:.{0 if abs(share) >= 0.0995 else 1}f} %"


def listed(values: Mapping[str, object]) -> str:
    """Names and values in a line, those left out that say nothing, and the name of the whole."""
    return ", ".join(f"{name} {value}" for name, value in values.items() if name != "name" and value not in ("", 0, None))


def plural(count: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def short(text: str, length: int = 60) -> str:
    """The beginning of a text of unknown origin, in one line and printable."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * length]).split())
    return line if len(line) <= length else line[: length - 1] + "…"
