"""Samples of a ``/metrics`` page in Prometheus' text format. It knows the format, no metric and no server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_NAME = r"\w+"
_LINE = r"^((?:\w+:)?(?:{}))(?:\{{([^\n]*)\}})?[ \t]+([-+.\w]+)(?:[ \t]+-?\d+)?[ \t]*$"
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """One line."""

    name: str
    """With its prefix: ``forno:num_requests_running``."""
    labels: dict[str, str]
    """Values with their escapes."""
    value: float

    @property
    def metric(self) -> str:
        """The name without its prefix."""
        return self.name.rpartition(":")[2]


def samples(page: str, names: Iterable[str] = ()) -> Iterator[Sample]:
    """The samples of ``names`` (with a prefix or with any; none: all) in the page's order; lines that cannot be read are left
    out."""
    wanted = "|".join(map(re.escape, names)) or _NAME
    for name, labels, text in re.findall(_LINE.format(wanted), page, re.MULTILINE):
        try:
            value = float(text)
        except ValueError:
            continue
        yield Sample(name, dict(_LABEL.findall(labels)), value)
