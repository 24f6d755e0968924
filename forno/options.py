"""Command-line options derived from config dataclasses. It knows argparse and dataclass fields, no verb and no engine.

A field ``max_num_seqs: int`` becomes ``--max-num-seqs``; a bool gets ``--x/--no-x``; help, choices and defaults come
from the field, so the documentation of a flag is written once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar, get_type_hints

from forno.errors import ConfigError

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """Refuses an unknown flag, verb or choice with the nearest known one."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # what argparse calls for each verb too
        words = sys.argv[1:] if args is None else list(args)
        self._refuse(self._own_flags(words))
        found, unknown = super().parse_known_args(words, namespace)
        self._refuse([text for text in unknown if text.startswith("-")])
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += _hint(str(value), map(str, action.choices or ()))
            raise

    def _own_flags(self, words: Sequence[str]) -> list[str]:
        """Long flags before a verb. Looked at first: argparse may take an unknown one's value for a verb, and complain so."""
        verbs = {name for action in self._actions if isinstance(action, argparse._SubParsersAction) for name in action.choices}
        end = next((i for i, word in enumerate(words) if word == "--" or word in verbs), len(words))
        return [word for word in words[:end] if word.startswith("--") and " " not in word]

    def _refuse(self, flags: Iterable[str]) -> None:
        for name in (text.split("=")[0] for text in flags):
            if name not in self._option_string_actions:
                self.error(f"unknown option {name}{_hint(name, self._option_string_actions)}")


def flag(name: str) -> str:
    """The command-line flag of a config field."""
    return "--" + name.replace("_", "-")


def add_options(parser: argparse.ArgumentParser, *configs: type, skip: Iterable[str] = ()) -> None:
    """Add one option per field of each config dataclass, grouped by config."""
    for config in configs:
        doc = (config.__doc__ or "").split(".")[0]
        group = parser.add_argument_group(config.__name__.removesuffix("Config").lower() or config.__name__, doc)
        hints = get_type_hints(config)
        for field in fields(config):
            if field.name not in skip:
                _add_option(group, field, hints[field.name])


def _add_option(group: argparse._ArgumentGroup, field: Field[Any], kind: type) -> None:
    text = f"{field.metadata.get('help', '')} (default: {_shown(field.default)})"
    common: dict[str, Any] = {"default": field.default, "help": text.replace("%", "%%"), "dest": field.name}
    if kind is bool:
        group.add_argument(flag(field.name), action=argparse.BooleanOptionalAction, **common)
        return
    if "choices" in field.metadata:
        common["choices"] = field.metadata["choices"]
    else:
        common["metavar"] = field.metadata.get("metavar", field.name.rsplit("_", 1)[-1].upper())
    group.add_argument(flag(field.name), type=kind, **common)


def _shown(default: Any) -> str:
    return "none" if default in ("", MISSING) else str(default)


def from_args(config: type[T], args: argparse.Namespace) -> T:
    """Build ``config`` from parsed options; fields the parser did not have keep their defaults."""
    names = [f.name for f in fields(config)]  # type: ignore[arg-type]
    return config(**{n: getattr(args, n) for n in names if hasattr(args, n)})


def from_options(config: type[T], options: dict[str, Any]) -> T:
    """Build ``config`` from keyword options, taking the ones it has out of ``options``."""
    names = {f.name for f in fields(config)}  # type: ignore[arg-type]
    return config(**{n: options.pop(n) for n in list(options) if n in names})


def refuse_unknown(options: dict[str, Any], *configs: type) -> None:
    """Raise ``ConfigError`` naming options that no config took, with the nearest known name."""
    if options:
        name = next(iter(options))
        raise ConfigError(f"unknown option {name!r}{_hint(name, [f.name for c in configs for f in fields(c)])}")


def _hint(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
