"""What a workload is: conversations, made from a seed, whose calls a load generator sends when its arrivals say so.

It knows what is asked, neither when it is sent nor how.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Protocol

from forno.bench import lengths
from forno.bench.lengths import Distribution
from forno.bench.ruler import Ruler
from forno.errors import ConfigError
from forno.options import flag

Message = dict[str, Any]
"""``{"role": ..., "content": ...}`` as in the OpenAI API."""


LENGTH, TIME = "LENGTH", "TIME"
"""Metavars of fields that are distributions."""
LARGEST = 10_000_000
"""Of any count: tokens, documents, requests."""


def knob(default: Any, help: str, **metadata: Any) -> Any:
    """A documented field of a workload. ``metadata`` may hold ``choices`` and ``metavar`` for the command line."""
    return field(default=default, metadata={"help": help, **metadata})


def length(default: str, help: str) -> Any:
    """A field that is a distribution of lengths in the server's tokens."""
    return knob(default, f"{help}, in the server's tokens: {lengths.FORMS}.", metavar=LENGTH)


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def system(content: str) -> Message:
    return {"role": "system", "content": content}


@dataclass(frozen=True, slots=True)
class Call:
    """One request's content. Exactly one of ``messages`` (a chat) and ``prompt`` (a completion) is set."""

    max_tokens: int
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    at: float | None = None
    """When a trace sent it: seconds since the trace's first request, already scaled. A later call of a conversation is sent
    then, or when the answer before has come, whichever is later. None: when the arrivals say."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the request's body."""


class Conversation(Protocol):
    """Calls that follow each other, each after the answer before. A load generator asks ``first`` once, then ``next`` with
    every whole answer, until None; it drops a conversation in which a call failed."""

    session: int
    """Its number within the workload, from 0."""
    think_seconds: float
    """How long the user waits after reading an answer, before the call that ``next`` has just returned."""

    def first(self) -> Call: ...

    def next(self, answer: str) -> Call | None: ...


@dataclass(slots=True)
class Single:
    """A conversation of one call."""

    session: int
    call: Call
    think_seconds: float = 0.0

    def first(self) -> Call:
        return self.call

    def next(self, answer: str) -> Call | None:
        return None


@dataclass(frozen=True, slots=True)
class Workload(ABC):
    """Parameters of a kind of traffic: frozen, every field with a default and a help text, from which options are derived.

    Construction raises ``ConfigError`` for parameters that cannot be honoured.
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.metadata.get("metavar") in (LENGTH, TIME):
                self.distribution(spec.name)
            elif isinstance(value, int) and not 0 <= value <= LARGEST:
                raise ConfigError(f"{flag(spec.name)} must lie between 0 and {LARGEST}, got {value}")

    def params(self) -> dict[str, Any]:
        """Name and every parameter, for the result file: together with the seed, enough to send the same again."""
        return {"name": self.name, **asdict(self)}

    def distribution(self, field: str) -> Distribution:
        """What a field says in the words of ``lengths.py``."""
        return lengths.parse(getattr(self, field), flag(field))

    @abstractmethod
    def conversations(self, ruler: Ruler, seed: int) -> Iterator[Conversation]:
        """Conversations in order; endless where the workload is. The same ``ruler`` and ``seed`` give the same bytes, and
        conversation i does not depend on what became of those before."""
