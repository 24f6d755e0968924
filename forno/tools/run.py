"""``forno run``: chat in the terminal, or one answer for a prompt given as arguments or through a pipe.

The answer goes to stdout as it is generated; everything else goes to stderr.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from threading import Event
from typing import Any

from forno.config import ENGINE_PARTS
from forno.engine.build import Built, build_engine, engine_config_of
from forno.engine.defaults import sampling_defaults
from forno.engine.engine import Engine
from forno.errors import ConfigError, FornoError, RequestError
from forno.options import add_options
from forno.request import FinishReason, Request, RequestOutput, SamplingParams
from forno.text import ChatTemplate, Tokenizer, load_chat_template, read_template

HELP = "/clear forgets the conversation, /system TEXT sets the system message, /exit or Ctrl-D leaves, Ctrl-C stops an answer."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("prompt", nargs="*", help="Answer this and leave; without it, read a pipe, or chat.")
    parser.add_argument("--system", default="", help="System message.")
    parser.add_argument("--raw", action="store_true", help="Continue the prompt as text instead of answering it as a chat.")
    parser.add_argument(
        "--max-tokens", type=int, default=0, help="Most tokens per answer (default: 0: what the context holds)."
    )
    parser.add_argument("--temperature", type=float, default=None, help="0 is greedy (default: the model's own, else 0.7).")
    parser.add_argument("--top-p", type=float, default=None, help="Nucleus mass (default: the model's own, else 1).")
    parser.add_argument("--seed", type=int, default=None, help="Same seed, same answer.")
    parser.add_argument("--stats", action="store_true", help="Print token counts and speeds on stderr after each answer.")
    add_options(parser, *ENGINE_PARTS.values())


@dataclass(frozen=True, slots=True)
class Session:
    """An engine and the settings of every answer."""

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    sampling: dict[str, Any]
    max_tokens: int
    stats: bool
    ids: Iterator[int]

    def answer(self, prompt: list[int]) -> Generator[RequestOutput, None, None]:
        """Outputs of one request as they come. Closing the iterator aborts it."""
        room = self.engine.max_model_len - len(prompt)
        limit = min(self.max_tokens or room, room)
        sampling = SamplingParams(max_tokens=max(limit, 1), **self.sampling)
        request = Request(str(next(self.ids)), tuple(prompt), sampling, eos_token_ids=self.tokenizer.eos_token_ids)
        self.engine.add_request(request)
        finished = False
        try:
            while not finished:
                for output in self.engine.step():
                    if output.error is not None:
                        raise output.error
                    finished = finished or output.finish_reason is not None
                    yield output
        finally:
            if not finished:
                self.engine.abort(request.id)
                while self.engine.has_work:
                    self.engine.step()


def run(args: argparse.Namespace) -> int:
    """0, or 1 after an error; an interrupted answer is not an error."""
    text = " ".join(args.prompt)
    if not text and not sys.stdin.isatty():
        text = sys.stdin.buffer.read().decode("utf-8", errors="replace").strip()
        if not text:
            raise RequestError("the pipe was empty: there is no prompt to answer")
    if args.raw and not text:
        raise ConfigError("--raw needs a prompt, as arguments or through a pipe")
    if args.max_tokens < 0:
        raise ConfigError(f"--max-tokens must not be negative, got {args.max_tokens}")
    session = _open(args)
    if not text:
        return _chat(session, args.system)
    messages = [*_system(args.system), {"role": "user", "content": text}]
    _speak(session, session.tokenizer.encode(text) if args.raw else _encode(session, messages))
    return 0


def _open(args: argparse.Namespace) -> Session:
    config = engine_config_of(args)
    built: Built = build_engine(config)
    sampling = {"temperature": 0.7, **sampling_defaults(built.checkpoint.generation_config)}
    given = {"temperature": args.temperature, "top_p": args.top_p, "seed": args.seed}
    sampling |= {k: v for k, v in given.items() if v is not None}
    SamplingParams(**sampling)  # wrong values are refused before the first question
    template = load_chat_template(built.checkpoint, built.tokenizer, read_template(config.model.chat_template))
    return Session(built.engine, built.tokenizer, template, sampling, args.max_tokens, args.stats, count())


def _system(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": text}] if text else []


def _encode(session: Session, messages: list[dict[str, str]]) -> list[int]:
    text = session.template.render(messages, add_generation_prompt=True)
    return session.tokenizer.encode(text, add_special_tokens=False)


def _speak(session: Session, prompt: list[int]) -> str:
    """Print one answer as it comes; returns its text. Ctrl-C ends the answer."""
    parts: list[str] = []
    started = time.perf_counter()
    first = 0.0
    output = None
    with _interrupts() as interrupted, closing(session.answer(prompt)) as answer:
        for output in answer:
            first = first or time.perf_counter()
            parts.append(output.text)
            sys.stdout.write(output.text)
            sys.stdout.flush()
            if interrupted.is_set():
                print(" [stopped]", file=sys.stderr, end="")
                break
    print(flush=True)
    if output is not None and output.finish_reason is FinishReason.LENGTH:
        print("[cut at the token limit]", file=sys.stderr)
    if session.stats and output is not None:
        print(_summary(output, first - started, time.perf_counter() - first), file=sys.stderr)
    return "".join(parts)


@contextmanager
def _interrupts() -> Iterator[Event]:
    """Ctrl-C sets the event, so that an answer ends between two steps of the engine and never inside one; a second one
    raises ``KeyboardInterrupt`` as ever."""
    event = Event()

    def note(signum: int, frame: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _summary(output: RequestOutput, to_first: float, after: float) -> str:
    tokens = output.num_generated_tokens
    speed = (tokens - 1) / after if tokens > 1 and after > 0 else 0.0
    computed = output.num_prompt_tokens - output.num_cached_tokens
    return (
        f"[{output.num_prompt_tokens} prompt tokens, {output.num_cached_tokens} cached; "
        f"first token after {to_first * 1000:.0f} ms ({computed / max(to_first, 1e-9):.0f} tok/s); "
        f"{tokens} tokens at {speed:.1f} tok/s]"
    )


def _chat(session: Session, system: str) -> int:
    import readline  # noqa: F401 - gives input() history and editing

    print(HELP, file=sys.stderr)
    messages = _system(system)
    while True:
        try:
            line = input("> ").strip()
            if line in ("/exit", "/quit"):
                return 0
            messages = _turn(session, messages, line)
        except EOFError:
            print(file=sys.stderr)
            return 0
        except KeyboardInterrupt:
            print("\n(Ctrl-D leaves)", file=sys.stderr)


def _turn(session: Session, messages: list[dict[str, str]], line: str) -> list[dict[str, str]]:
    """Do what a line says; returns the conversation after it."""
    if line == "/clear":
        return [m for m in messages if m["role"] == "system"]
    if line.split(maxsplit=1)[:1] == ["/system"]:
        return _system(line.removeprefix("/system").strip())
    if line.startswith("/"):
        print(HELP, file=sys.stderr)
        return messages
    if not line:
        return messages
    asked = [*messages, {"role": "user", "content": line}]
    try:
        text = _speak(session, _encode(session, asked))
    except FornoError as error:
        print(f"{error}\n(/clear forgets the conversation)", file=sys.stderr)
        return messages
    return [*asked, {"role": "assistant", "content": text}]
