"""What a workload is: conversations, made from a seed, whose calls a load generator sends when its arrivals say so.

It knows what is asked, neither when it is sent nor how.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Protocol

from forno.bench.ruler import Ruler

Message = dict[str, Any]
"""``{"role": ..., "content": ...}`` as in the OpenAI API."""


def knob(default: Any, help: str, **metadata: Any) -> Any:
    """A documented field of a workload. ``metadata`` may hold ``choices`` and ``metavar`` for the command line."""
    return field(default=default, metadata={"help": help, **metadata})


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

    def params(self) -> dict[str, Any]:
        """Name and every parameter, for the result file: together with the seed, enough to send the same again."""
        return {"name": self.name, **asdict(self)}

    @abstractmethod
    def conversations(self, ruler: Ruler, seed: int) -> Iterator[Conversation]:
        """Conversations in order; endless where the workload is. The same ``ruler`` and ``seed`` give the same bytes, and
        conversation i does not depend on what became of those before."""
