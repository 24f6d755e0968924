"""``forno bench`` against other load generators: do they say the same of the same server under the same load?

    make bench-agreement        or    python -m benchmarks.agreement [--clients 1,4] [--rounds 3] [--against forno,steady]

Every client sends the same prompts, streamed, with as many requests at once, in interleaved rounds; what each reports is
brought to one definition (``benchmarks/clients.py``) and held against what the server knows. Two servers: ``steady`` computes
nothing and answers at known times; ``forno`` serves the model on half of the cores, without a prefix cache, and its own
histograms tell what it did during a client's run, so that a machine whose speed drifts is no client's fault. Clients run on
the other half, or a heavy one would be measured by what it takes from the server. Prints a table of medians and ends in one
JSON line; the status is 1 if a client failed, or differs from ``forno bench`` by more than ``--tolerance``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import processes, servers
from benchmarks.clients import OURS, Client, FornoBench, Load, LoadGen, Question, Said
from benchmarks.measure import Contention, machine, progress, table
from benchmarks.peers.aiperf import AiPerf
from benchmarks.peers.guidellm import GuideLlm
from benchmarks.peers.place import DEFAULT_DIR, REPOSITORY, PeerError
from benchmarks.servers import MODEL, ServerError
from forno.bench.ablate.counters import parse
from forno.bench.ask import get
from forno.bench.ruler import Ruler
from forno.bench.workloads import RandomWorkload
from forno.config import DEFAULT_MODEL
from forno.errors import FornoError
from forno.loader.sources import resolve

MEASURES = ("ttft_ms", "tpot_ms", "tok_s")
TTFT, TPOT = 120.0, 12.0
"""Milliseconds of the steady server."""
LIMIT = 300.0
"""Seconds that a client may take."""
SERVERS = ("steady", "forno")
TIMES = ("time_to_first_token_seconds", "request_time_per_output_token_seconds")
"""Histograms of forno's ``/metrics``: one value per request."""


def clients(directory: Path) -> list[Client]:
    """All of them, the one that the others are held against first."""
    return [FornoBench(), GuideLlm(directory), AiPerf(directory), LoadGen()]


def halves(cores: Sequence[int]) -> tuple[list[int], list[int]]:
    """Cores for the server and for clients; of a single one both."""
    middle = len(cores) // 2
    return (list(cores[:middle]), list(cores[middle:])) if middle else (list(cores), list(cores))


def pinned(cores: Sequence[int], command: Sequence[str]) -> list[str]:
    return ["taskset", "-c", ",".join(map(str, cores)), *command]


def server_command(kind: str, model: Path, port: int) -> list[str]:
    if kind == "steady":
        flags = ["--port", str(port), "--ttft", str(TTFT), "--tpot", str(TPOT)]
        return [sys.executable, "-m", "benchmarks.steady", *flags]
    flags = ["--model", str(model), "--served-model-name", MODEL, "--port", str(port), "--no-enable-prefix-caching"]
    return [sys.executable, "-m", "forno", "serve", *flags]


def questions(count: int, prompt: int, answer: int, seed: int) -> tuple[Question, ...]:
    """Different texts of about ``prompt`` tokens. Answers differ by a half around ``answer``, or clients of a closed loop would
    fall into step, each time in another way."""
    workload = RandomWorkload(input_tokens=str(prompt), max_tokens=f"uniform:{answer - answer // 2}:{answer + answer // 2}")
    calls = (conversation.first() for conversation in itertools.islice(workload.conversations(Ruler(), seed), count))
    return tuple(Question(call.messages[0]["content"], call.max_tokens) for call in calls)


@contextmanager
def serving(kind: str, model: Path) -> Iterator[str]:
    """The URL of a running server that has answered once. Raises ``ServerError``."""
    port, cores = servers.free_port(), halves(sorted(os.sched_getaffinity(0)))[0]
    with servers.running(pinned(cores, server_command(kind, model, port)), port) as server:
        server.first_token()
        yield server.url


def known(kind: str, load: Load, before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What the server knows of a load, by the clients' definitions: mean TTFT and TPOT, and the rate at which as many clients
    as the load has get tokens if they are never idle. A few requests besides, such as a client's first try, do little harm."""
    ttft, tpot = (TTFT, TPOT) if kind == "steady" else (1000 * _mean(before, after, name) for name in TIMES)
    tokens = sum(question.max_tokens for question in load.questions)
    seconds = sum(ttft + (question.max_tokens - 1) * tpot for question in load.questions) / 1000
    return {"ttft_ms": ttft, "tpot_ms": tpot, "tok_s": tokens * load.clients / seconds}


def _mean(before: dict[str, float], after: dict[str, float], name: str) -> float:
    total, count = (after[f"{name}_{what}"] - before[f"{name}_{what}"] for what in ("sum", "count"))
    return total / count


def histograms(kind: str, url: str) -> dict[str, float]:
    """Sums and counts of ``TIMES`` up to now; nothing of a server that has none."""
    if kind == "steady":
        return {}
    values = parse(get(f"{url}/metrics").decode())
    return {f"{name}_{what}": values.get(f"{name}_{what}", 0.0) for name in TIMES for what in ("sum", "count")}


def ask(client: Client, load: Load) -> Said:
    """What ``client`` says of ``load``. Raises ``ChildError``, or ``PeerError`` if not all requests were answered."""
    cores = halves(sorted(os.sched_getaffinity(0)))[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output = processes.output(pinned(cores, client.command(load, folder)), cwd=REPOSITORY, limit=LIMIT)
        said = client.read(load, folder, output)
    if said.completed != len(load.questions):
        raise PeerError(f"{client.name} counts {said.completed} of {len(load.questions)} requests as answered")
    return said


@dataclass(slots=True)
class Comparison:
    """What clients said of one server under one load, by round."""

    server: str
    clients: int
    said: dict[str, list[Said]] = field(default_factory=dict)
    known: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """What the server knows of each of those runs."""

    def add(self, client: str, said: Said, known: dict[str, float]) -> None:
        self.said.setdefault(client, []).append(said)
        self.known.setdefault(client, []).append(known)

    def median(self, client: str, measure: str) -> float:
        return statistics.median(getattr(said, measure) for said in self.said[client])

    def share(self, client: str, measure: str) -> float:
        """What a client says by what the server knows of that very run; the median over rounds."""
        pairs = zip(self.said[client], self.known[client], strict=True)
        return statistics.median(getattr(said, measure) / known[measure] for said, known in pairs)

    def difference(self, client: str, measure: str) -> float:
        """Of a client from ours, as a share: both by what the server knows."""
        return self.share(client, measure) / self.share(OURS, measure) - 1

    def rows(self) -> list[list[str]]:
        load = f"{self.server}, {self.clients} client{'s' if self.clients > 1 else ''}"
        rows = []
        for measure in MEASURES:
            cells = [f"{self.median(client, measure):.4g} ({self.share(client, measure) - 1:+.1%})" for client in self.said]
            apart = max((self.difference(client, measure) for client in self.said), key=abs)
            rows.append([f"{load}: {measure.replace('_', ' ')}", *cells, f"{apart:+.1%}"])
        return rows

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for client, rounds in self.said.items():
            own = {name: statistics.median(said.own[name] for said in rounds) for name in rounds[0].own}
            common = {measure: round(self.median(client, measure), 3) for measure in MEASURES}
            share = {measure: round(self.share(client, measure), 4) for measure in MEASURES}
            apart = {measure: round(self.difference(client, measure), 4) for measure in MEASURES}
            found[client] = common | {"by server": share, "difference": apart, "own": own}
        return {"server": self.server, "clients": self.clients, "said": found}

    def worst(self) -> float:
        return max(abs(self.difference(client, measure)) for client in self.said for measure in MEASURES)


def compare(
    kind: str, model: Path, chosen: Sequence[Client], options: argparse.Namespace, watch: Contention
) -> list[Comparison]:
    """Every client in turn, round after round, on one server, for each number of clients."""
    counts = [int(count) for count in options.clients.split(",")]
    found = [Comparison(kind, count) for count in counts]
    with serving(kind, model) as url:
        for number in range(options.rounds):
            for comparison in found:
                asked = questions(options.requests * comparison.clients, options.tokens, options.max_tokens, seed=number)
                load = Load(url, MODEL, asked, comparison.clients)
                for client in chosen:
                    progress(f"{kind}, {comparison.clients} clients, round {number + 1} of {options.rounds}: {client.name}")
                    before = histograms(kind, url)
                    with watch.watched():
                        said = ask(client, load)
                    comparison.add(client.name, said, known(kind, load, before, histograms(kind, url)))
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    before, watch, model = machine(), Contention(), resolve(options.model)
    wanted = {name.strip() for name in options.tools.split(",")} | {OURS}
    chosen = [client for client in clients(options.dir) if client.name in wanted]
    if unknown := wanted - {client.name for client in chosen}:
        raise PeerError(f"there is no client {', '.join(sorted(unknown))}")
    for client in chosen:
        client.prepare(model)
    found = [
        comparison for kind in options.against.split(",") for comparison in compare(kind.strip(), model, chosen, options, watch)
    ]
    header = ["median (to what the server knows)", *(client.name for client in chosen), "furthest from forno bench"]
    print(table(header, [row for comparison in found for row in comparison.rows()]))
    worst = max(comparison.worst() for comparison in found)
    print(f"\nLargest difference {worst:.1%}. Other processes used {watch.mean} cores on average, {watch.worst} at worst.")
    return {
        "benchmark": "agreement",
        "model": options.model,
        "machine": before,
        "rounds": options.rounds,
        "requests": options.requests,
        "tokens": {"prompt": options.tokens, "answer": options.max_tokens},
        "other_cores": {"mean": watch.mean, "worst": watch.worst},
        "comparisons": [comparison.as_json() for comparison in found],
        "largest_difference": round(worst, 4),
        "agrees": worst <= options.tolerance / 100,
    }


def parser() -> argparse.ArgumentParser:
    names = ",".join(client.name for client in clients(DEFAULT_DIR)[1:])
    found = argparse.ArgumentParser(description="forno bench against other load generators.")
    found.add_argument("--model", default=DEFAULT_MODEL, help="a GGUF file, or a built-in model that is one")
    found.add_argument("--tools", default=names, help="default: %(default)s")
    found.add_argument("--against", default=",".join(SERVERS), help="servers; default: %(default)s")
    found.add_argument("--clients", default="1,4", help="requests at once, one load each; default: %(default)s")
    found.add_argument("--requests", type=int, default=12, help="per client and load; default: %(default)s")
    found.add_argument("--tokens", type=int, default=256, help="of a prompt; default: %(default)s")
    found.add_argument("--max-tokens", type=int, default=64, help="of an answer, on average; default: %(default)s")
    found.add_argument("--rounds", type=int, default=3, help="how often each client has its turn; default: %(default)s")
    found.add_argument("--tolerance", type=float, default=5.0, help="difference in %% that is no failure; default: %(default)s")
    found.add_argument("--dir", type=Path, default=DEFAULT_DIR, help="where the others live; default: %(default)s")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that children are ended too
    try:
        result = run(options)
    except (PeerError, ServerError, processes.ChildError, FornoError, LookupError) as error:
        progress(f"{type(error).__name__}: {error}")
        raise SystemExit(1) from error
    print(json.dumps(result))
    if not result["agrees"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
