"""Durations for people: measured ones with three digits, ages in the units of a clock. It knows no view."""

from __future__ import annotations

UNKNOWN = "-"


def latency(seconds: float | None) -> str:
    """12 us, 4.56 ms, 99.9 ms, 1.23 s, 321 s."""
    if seconds is None:
        return UNKNOWN
    value, unit = (seconds, "s") if seconds >= 1 else (1e3 * seconds, "ms") if seconds >= 1e-3 else (1e6 * seconds, "us")
    return f"{value:.0f} {unit}" if value >= 99.95 or unit == "us" else f"{value:.3g} {unit}"


def age(seconds: float | None) -> str:
    """1.2s, 45s, 3m05s, 2h07m, 3d04h."""
    if seconds is None:
        return UNKNOWN
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole // 60 % 60:02d}m"
    return f"{whole // 86400}d{whole // 3600 % 24:02d}h"
