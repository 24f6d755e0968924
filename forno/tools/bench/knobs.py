"""Options of all workloads on one command line, derived from their fields. It knows dataclasses and argparse."""

from __future__ import annotations

import argparse
from dataclasses import Field, fields
from difflib import get_close_matches
from typing import Any, get_type_hints

from forno.bench.workload import Workload
from forno.bench.workloads import WORKLOADS, workload_class
from forno.errors import ConfigError
from forno.options import flag

_PREFIX = "knob_"


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--workload`` and one option per knob; a knob that several workloads have is one option, with each one's default."""
    parser.add_argument("--workload", default="chat", metavar="NAME", help=f"One of {', '.join(WORKLOADS)} (default: chat).")
    group = parser.add_argument_group("workload", "What is asked; a knob belongs to the workloads before its colon")
    owners: dict[str, list[tuple[str, Field[Any], type]]] = {}
    for name, kind in WORKLOADS.items():
        hints = get_type_hints(kind)
        for knob in fields(kind):
            owners.setdefault(knob.name, []).append((name, knob, hints[knob.name]))
    for name, found in owners.items():
        _add(group, name, found)


def _add(group: argparse._ArgumentGroup, name: str, owners: list[tuple[str, Field[Any], type]]) -> None:
    defaults: dict[str, list[str]] = {}
    for owner, knob, _ in owners:
        defaults.setdefault(str(knob.default), []).append(owner)
    shown = "; ".join(
        f"{', '.join(who) if len(defaults) > 1 else ''} {value or 'none'}".strip() for value, who in defaults.items()
    )
    _, first, kind = owners[0]
    text = f"{', '.join(owner for owner, _, _ in owners)}: {first.metadata['help']} (default: {shown})".replace("%", "%%")
    if kind is bool:
        group.add_argument(flag(name), dest=_PREFIX + name, action=argparse.BooleanOptionalAction, default=None, help=text)
        return
    common = {"choices": first.metadata["choices"]} if "choices" in first.metadata else {"metavar": _metavar(first)}
    group.add_argument(flag(name), dest=_PREFIX + name, default=None, help=text, **common)


def _metavar(knob: Field[Any]) -> str:
    return str(knob.metadata.get("metavar", knob.name.rsplit("_", 1)[-1].upper()))


def workload_of(args: argparse.Namespace) -> Workload:
    """The workload that the options name. Raises ``ConfigError`` for a knob that it does not have."""
    kind = workload_class(args.workload)
    hints = get_type_hints(kind)
    given = {name.removeprefix(_PREFIX): value for name, value in vars(args).items() if name.startswith(_PREFIX)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None:
            values[name] = _converted(kind, name, value, hints)
    return kind(**values)


def _converted(kind: type[Workload], name: str, value: Any, hints: dict[str, Any]) -> Any:
    known = [knob.name for knob in fields(kind)]
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {flag(near[0])}?" if near else ""
        raise ConfigError(f"{flag(name)} is no option of the workload {kind.name}{hint}")
    try:
        return value if isinstance(value, bool) else hints[name](value)
    except ValueError:
        raise ConfigError(f"{flag(name)} must be {hints[name].__name__}, got {value!r}") from None
