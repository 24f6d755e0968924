"""Goodput: which requests met every limit of their SLO class. It knows no engine, no HTTP and no exposition format.

A class is written ``name:limit=seconds,...``; several are told apart by ``;``. Limits are TTFT, TPOT and E2E as the engine
measures them: from a request's arrival at the engine, on its clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forno.errors import ConfigError, RequestError
from forno.request import FinishReason

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from forno.engine.stats import FinishedRequest
    from forno.server.metrics import Family

LIMITS = ("ttft", "tpot", "e2e")
HEADER = "x-slo-class"
"""What names a request's class."""
ERROR = "error"
"""Beside the limits, a reason to miss: the request failed, or was refused because the server had too much to do."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SECONDS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s)?")
_FORM = 'write --slo "interactive:ttft=0.5,tpot=0.05;batch:e2e=60" (seconds)'


@dataclass(frozen=True, slots=True)
class SloClass:
    """Limits of one class, in seconds; infinite where it has none."""

    name: str
    ttft: float = float("inf")
    """From arrival to the first token."""
    tpot: float = float("inf")
    """Mean time per token after the first."""
    e2e: float = float("inf")
    """From arrival to the last token."""


def parse_slo(text: str) -> tuple[SloClass, ...]:
    """The classes that ``--slo`` names, in its order. A class may go without a name if it is the only one: ``default``.

    Raises ``ConfigError`` saying which part is wrong.
    """
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if text.strip() and not parts:
        raise ConfigError(f"--slo {text!r} names no class: {_FORM}")
    classes = [_class(part, alone=len(parts) == 1) for part in parts]
    names = [c.name for c in classes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"--slo names the class {twice!r} twice")
    return tuple(classes)


def _class(text: str, alone: bool) -> SloClass:
    name, colon, limits = text.rpartition(":")
    name = name.strip() if colon else "default"
    if not colon and not alone:
        raise ConfigError(f"--slo: {text!r} has no name, and with several classes each needs one: {_FORM}")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"--slo: {name!r} is no name of a class: letters, digits, '_', '-' and '.', at most 64")
    found: dict[str, float] = {}
    for part in limits.split(","):
        limit, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or limit not in LIMITS:
            raise ConfigError(f"--slo: {part.strip()!r} of class {name!r} is not one of {', '.join(LIMITS)} = seconds: {_FORM}")
        if limit in found:
            raise ConfigError(f"--slo: class {name!r} sets {limit} twice")
        found[limit] = _seconds(name, limit, value)
    return SloClass(name, **found)


def _seconds(name: str, limit: str, text: str) -> float:
    match = _SECONDS.fullmatch(text)
    value = float(match[1]) / (1000 if match[2] == "ms" else 1) if match else 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"--slo: {limit} of class {name!r} must be seconds above 0, such as 0.5 or 500ms, got {text!r}")
    return value


def missed(slo: SloClass, request: FinishedRequest) -> list[str]:
    """The limits that a finished request missed. What it had not reached when it ended was missed if its time is up."""
    times, tokens = request.times, request.num_generated_tokens
    first = times.first_token or times.finished
    found = []
    if first - times.arrival > slo.ttft:
        found.append("ttft")
    if tokens > 1 and times.first_token and (times.finished - times.first_token) / (tokens - 1) > slo.tpot:
        found.append("tpot")
    if times.finished - times.arrival > slo.e2e:
        found.append("e2e")
    if request.reason is FinishReason.ERROR:
        found.append(ERROR)
    return found


class Goodput:
    """Counts requests by class, whether they met every limit, and which they missed. One thread."""

    def __init__(self, classes: tuple[SloClass, ...] = ()) -> None:
        self.classes = {slo.name: slo for slo in classes}
        self.met = dict.fromkeys(self.classes, 0)
        self.failed = dict.fromkeys(self.classes, 0)
        self.missed = {(name, limit): 0 for name in self.classes for limit in (*LIMITS, ERROR)}

    @property
    def default(self) -> str:
        """The first class; nothing if there is none."""
        return next(iter(self.classes), "")

    def choose(self, name: str | None) -> str:
        """The class that a request asks for; None: the first. Raises ``RequestError`` naming the known ones."""
        if name is None:
            return self.default
        if name not in self.classes:
            known = f"known are {', '.join(self.classes)}" if self.classes else "this server has none: start it with --slo"
            raise RequestError(f"unknown SLO class {name!r} in the header {HEADER}: {known}", HEADER)
        return name

    def observe(self, request: FinishedRequest) -> None:
        """Count a finished request. One that its client gave up counts only if it had missed a limit by then."""
        slo = self.classes.get(request.slo_class)
        if slo is None:
            return
        limits = missed(slo, request)
        if limits:
            self._miss(slo.name, limits)
        elif request.reason is not FinishReason.ABORT:
            self.met[slo.name] += 1

    def refuse(self, name: str | None) -> None:
        """Count a request that was refused because the server had too much to do; ``name`` as in ``choose``."""
        slo = self.default if name is None else name
        if slo in self.classes:
            self._miss(slo, [ERROR])

    def _miss(self, name: str, limits: list[str]) -> None:
        self.failed[name] += 1
        for limit in limits:
            self.missed[name, limit] += 1

    def families(self, make: Family) -> Iterator[Metric]:
        """For ``/metrics``."""
        requests: dict[tuple[str, str], float] = {}
        for name in self.classes:
            requests[name, "true"], requests[name, "false"] = self.met[name], self.failed[name]
        yield make.counters(
            ("slo", "met"), "slo_requests", "Requests, and whether they met every limit of their class.", requests
        )
        text = "Requests that missed a limit of their class, or failed; one may miss several."
        yield make.counters(("slo", "limit"), "slo_missed", text, self.missed)
        yield make.gauges(("slo", "limit"), "slo_limit_seconds", "The limits of each class.", self._limits())

    def _limits(self) -> Mapping[tuple[str, str], float]:
        every = {(slo.name, limit): getattr(slo, limit) for slo in self.classes.values() for limit in LIMITS}
        return {key: value for key, value in every.items() if value != float("inf")}
