"""Load generators that can be held against each other: the same load, and their reports in the same three numbers.

- TTFT: from sending a request to its first content; the mean over requests, ms.
- TPOT: (last content - first content) / (tokens - 1), tokens as the server counts them; the mean over requests, ms.
- tok/s: all output tokens / from the first request to the last token.

Knows what our own two print; ``peers/guidellm.py`` and ``peers/aiperf.py`` know the others.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.processes import as_flags

OURS = "forno bench"
REPORT = "forno.json"


@dataclass(frozen=True, slots=True)
class Question:
    """A chat of one message, whose answer has ``max_tokens`` tokens whatever the model says."""

    text: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop on a chat endpoint: every question once, in order."""

    url: str
    model: str
    questions: tuple[Question, ...]
    clients: int


@dataclass(frozen=True, slots=True)
class Said:
    """What a client says of a load, by the definitions above."""

    completed: int
    ttft_ms: float
    tpot_ms: float
    tok_s: float
    own: dict[str, float] = field(default_factory=dict)
    """Numbers of its report whose definitions are its own."""


class Client(Protocol):
    """A load generator as a command. It sends nothing but the load, and ends with status 0 if it could."""

    @property
    def name(self) -> str: ...

    def prepare(self, model: Path) -> None:
        """Make it ready to load a server of ``model``; minutes, the first time. Raises ``PeerError``."""

    def command(self, load: Load, folder: Path) -> list[str]:
        """What sends ``load``, from the repository's root; ``folder`` is empty and for its files."""

    def read(self, load: Load, folder: Path, output: str) -> Said:
        """What it found, from its files and its standard output. Raises ``LookupError`` or ``ValueError`` if it did not."""


def write_calls(load: Load, folder: Path) -> Path:
    """The load as JSON lines that ``forno bench`` and ``benchmarks.loadgen`` read."""
    path = folder / "calls.jsonl"
    rows = [{"messages": [{"role": "user", "content": q.text}], "max_tokens": q.max_tokens} for q in load.questions]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@dataclass(frozen=True, slots=True)
class FornoBench:
    """``forno bench``."""

    name: str = OURS

    def prepare(self, model: Path) -> None:
        pass

    def command(self, load: Load, folder: Path) -> list[str]:
        options: dict[str, Any] = {
            "--url": load.url,
            "--model": load.model,
            "--workload": "file",
            "--path": write_calls(load, folder),
            "--concurrency": load.clients,
            "--num-prompts": len(load.questions),
            "--warmup": 0,
            "--max-lag": 1000,  # a disturbed round is to be seen in the comparison, not to end it
            "--output": folder / REPORT,
        }
        return [sys.executable, "-m", "forno", "bench", *as_flags(options), "--no-repeat", "--no-progress", "--no-metrics"]

    def read(self, load: Load, folder: Path, output: str) -> Said:
        """From the requests themselves: its summary leaves out how a load begins and ends, which others count."""
        run = json.loads((folder / REPORT).read_text())["runs"][0]
        requests = [request for request in run["requests"] if request["error"] is None]
        span = max(request["last"] for request in requests) - min(request["sent"] for request in requests)
        return Said(
            completed=len(requests),
            ttft_ms=1000 * statistics.fmean(request["first"] - request["sent"] for request in requests),
            tpot_ms=1000 * statistics.fmean(_tpots(requests)),
            tok_s=sum(request["output_tokens"] for request in requests) / span,
            own={"output tok/s": run["summary"]["output_tokens_per_s"], "ttft p50 ms": run["summary"]["ttft_ms"]["p50"]},
        )


def _tpots(requests: Sequence[dict[str, Any]]) -> Iterator[float]:
    for request in requests:
        yield (request["last"] - request["first"]) / (request["output_tokens"] - 1)


@dataclass(frozen=True, slots=True)
class LoadGen:
    """``benchmarks.loadgen``."""

    name: str = "loadgen"

    def prepare(self, model: Path) -> None:
        pass

    def command(self, load: Load, folder: Path) -> list[str]:
        options: dict[str, Any] = {
            "--url": load.url,
            "--model": load.model,
            "--prompts": write_calls(load, folder),
            "-c": load.clients,
        }
        return [sys.executable, "-m", "benchmarks.loadgen", *as_flags(options)]

    def read(self, load: Load, folder: Path, output: str) -> Said:
        """Its time to first token counts connecting, as every request has a connection of its own."""
        line = json.loads(output.splitlines()[-1])
        return Said(
            completed=len(load.questions) - line["err"],
            ttft_ms=line["ttft_mean"],
            tpot_ms=line["tpot_mean"],
            tok_s=line["out_tok_s"],
            own={"itl p50 ms": line["itl_p50"]},
        )
