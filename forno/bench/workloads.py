"""The kinds of traffic that are made here: short chats, questions about shared documents, long talks, long prompts, lengths
drawn at random. ``replay.py`` has those that are read from files.

Text is cut from the corpus, lengths are the server's tokens by its ruler. Each conversation has a random generator of its own,
made of the seed and its number.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from forno.bench import lengths
from forno.bench.corpus import Corpus
from forno.bench.replay import FileWorkload, TraceWorkload
from forno.bench.ruler import Ruler
from forno.bench.workload import TIME, Call, Conversation, Message, Single, Workload, knob, length, system, user
from forno.errors import ConfigError

__all__ = ["WORKLOADS", "Call", "Conversation", "Workload", "workload_class"]


def _generator(seed: int, *what: object) -> random.Random:
    """A random generator for one thing of a workload: a string seeds it the same way on every machine."""
    return random.Random(":".join(map(str, (seed, *what))))


def _singles(seed: int, name: str, make: Callable[[random.Random], Call]) -> Iterator[Conversation]:
    """Endless conversations of one call."""
    for session in itertools.count():
        yield Single(session, make(_generator(seed, name, session)))


@dataclass(frozen=True, slots=True)
class _Writer:
    """Cuts text of wanted lengths."""

    corpus: Corpus
    ruler: Ruler

    def text(self, rng: random.Random, tokens: float) -> str:
        """Text alone of about so many tokens."""
        return self.corpus.draw(rng, self.ruler.words(tokens))

    def ask(self, rng: random.Random, instruction: str, tokens: float) -> str:
        """A message of an instruction and text whose prompt, template included, has about so many tokens."""
        words = self.ruler.prompt_words(tokens) - len(instruction.split())
        return f"{instruction}{self.corpus.draw(rng, max(1, words))}"


@dataclass(frozen=True, slots=True)
class ChatWorkload(Workload):
    """Short questions that have nothing in common."""

    name = "chat"

    input_tokens: str = length("uniform:60:200", "Length of a prompt")
    max_tokens: str = length("64", "Length of an answer")
    system_tokens: int = knob(0, "Length of a system prompt that all requests share; 0: none.")

    def conversations(self, ruler: Ruler, seed: int) -> Iterator[Conversation]:
        writer = _Writer(Corpus.load(), ruler)
        inputs, outputs = self.distribution("input_tokens"), self.distribution("max_tokens")
        shared = (system(writer.text(_generator(seed, "chat:system"), self.system_tokens)),) if self.system_tokens else ()

        def make(rng: random.Random) -> Call:
            question = writer.ask(rng, "Explain this to a beginner: ", inputs.whole(rng))
            return Call(outputs.whole(rng), (*shared, user(question)))

        return _singles(seed, self.name, make)


@dataclass(frozen=True, slots=True)
class RagWorkload(Workload):
    """Questions behind documents that others ask about too: what a prefix cache is for, and what document order does to it."""

    name = "rag"

    documents: int = knob(4, "Documents that there are.")
    documents_per_prompt: int = knob(1, "Different documents in a prompt, in their own order unless shuffled.")
    document_tokens: str = length("1200", "Length of a document")
    shuffle: float = knob(0.0, "Probability that the documents of a prompt are in random order, 0 to 1.", metavar="PROBABILITY")
    question_tokens: str = length("16", "Length of a question")
    max_tokens: str = length("64", "Length of an answer")

    def __post_init__(self) -> None:
        Workload.__post_init__(self)
        if not 1 <= self.documents_per_prompt <= self.documents <= 100_000:
            raise ConfigError(
                f"--documents-per-prompt must lie between 1 and --documents, and those be at most 100000; "
                f"got {self.documents_per_prompt} of {self.documents}"
            )
        if not 0 <= self.shuffle <= 1:
            raise ConfigError(f"--shuffle is a probability between 0 and 1, got {self.shuffle}")

    def conversations(self, ruler: Ruler, seed: int) -> Iterator[Conversation]:
        writer = _Writer(Corpus.load(), ruler)
        questions, outputs = self.distribution("question_tokens"), self.distribution("max_tokens")
        texts = [self._document(writer, seed, number) for number in range(self.documents)]

        def make(rng: random.Random) -> Call:
            chosen = sorted(rng.sample(range(self.documents), self.documents_per_prompt))
            if rng.random() < self.shuffle:
                rng.shuffle(chosen)
            context = "\n\n".join(["Answer only from the documents.", *(texts[number] for number in chosen)])
            question = "What do they say about this? " + writer.text(rng, questions.whole(rng))
            return Call(outputs.whole(rng), (system(context), user(question)))

        return _singles(seed, self.name, make)

    def _document(self, writer: _Writer, seed: int, number: int) -> str:
        rng = _generator(seed, "rag:document", number)
        return f"Document {number + 1}\n" + writer.text(rng, self.distribution("document_tokens").whole(rng))


@dataclass(frozen=True, slots=True)
class TurnsWorkload(Workload):
    """Talks of several turns: each prompt is the whole history, the model's real answers included, and a new question."""

    name = "turns"

    turns: int = knob(5, "Questions of a conversation.")
    question_tokens: str = length("uniform:30:90", "Length of a question")
    system_tokens: int = knob(200, "Length of a system prompt that all conversations share; 0: none.")
    think_seconds: str = knob("0", f"Time between an answer and the next question, in seconds: {lengths.FORMS}.", metavar=TIME)
    max_tokens: str = length("64", "Length of an answer")

    def __post_init__(self) -> None:
        Workload.__post_init__(self)
        if not 1 <= self.turns <= 10_000:
            raise ConfigError(f"--turns must lie between 1 and 10000, got {self.turns}")

    def conversations(self, ruler: Ruler, seed: int) -> Iterator[Conversation]:
        writer = _Writer(Corpus.load(), ruler)
        shared = [system(writer.text(_generator(seed, "turns:system"), self.system_tokens))] if self.system_tokens else []
        for session in itertools.count():
            yield _Talk(session, self, writer, _generator(seed, self.name, session), list(shared))


@dataclass(slots=True)
class _Talk:
    """A conversation of ``turns``."""

    session: int
    workload: TurnsWorkload
    writer: _Writer
    rng: random.Random
    messages: list[Message]
    think_seconds: float = 0.0
    asked: int = 0

    def first(self) -> Call:
        return self._ask()

    def next(self, answer: str) -> Call | None:
        if self.asked == self.workload.turns:
            return None
        self.messages.append({"role": "assistant", "content": answer})
        self.think_seconds = self.workload.distribution("think_seconds").draw(self.rng)
        return self._ask()

    def _ask(self) -> Call:
        self.asked += 1
        tokens = self.workload.distribution("question_tokens").whole(self.rng)
        self.messages.append(user(f"Question {self.asked}. What about this? {self.writer.text(self.rng, tokens)}"))
        return Call(self.workload.distribution("max_tokens").whole(self.rng), tuple(self.messages))


@dataclass(frozen=True, slots=True)
class RandomWorkload(Workload):
    """Prompts and answers whose lengths are drawn from distributions."""

    name = "random"
    instruction = ""
    """What every prompt begins with."""

    input_tokens: str = length("lognormal:512:0.5:4096", "Length of a prompt")
    max_tokens: str = length("lognormal:128:0.5:1024", "Length of an answer")

    def conversations(self, ruler: Ruler, seed: int) -> Iterator[Conversation]:
        writer = _Writer(Corpus.load(), ruler)
        inputs, outputs = self.distribution("input_tokens"), self.distribution("max_tokens")

        def make(rng: random.Random) -> Call:
            return Call(outputs.whole(rng), (user(writer.ask(rng, self.instruction, inputs.whole(rng))),))

        return _singles(seed, self.name, make)


@dataclass(frozen=True, slots=True)
class LongWorkload(RandomWorkload):
    """Long texts to summarize, which have nothing in common."""

    name = "long"
    instruction = "Summarize:\n"

    input_tokens: str = length("3000", "Length of a prompt")
    max_tokens: str = length("64", "Length of an answer")


WORKLOADS: dict[str, type[Workload]] = {
    kind.name: kind
    for kind in (ChatWorkload, RagWorkload, TurnsWorkload, LongWorkload, RandomWorkload, FileWorkload, TraceWorkload)
}


def workload_class(name: str) -> type[Workload]:
    """The kind of that name. Raises ``ConfigError`` with the nearest known one."""
    if name in WORKLOADS:
        return WORKLOADS[name]
    near = get_close_matches(name, WORKLOADS, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"unknown workload {name!r}{hint} (there are {', '.join(WORKLOADS)})")
