"""forno against llama.cpp, interleaved in one run, on the same file: prefill, decode, start, and chat over HTTP.

    make bench-llamacpp            or    python -m benchmarks.compare [--rounds 3] [--model M] [--types Q4_0,BF16]

llama.cpp runs the file as it is and, so that the table is honest, converted to the types that it is fastest at. An engine
runs only while it is measured. Prints a table with ratios and spreads, and ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks import servers
from benchmarks.engine import CONTEXT, GENERATE, PREFILL, STEPS
from benchmarks.measure import Contention, Results, Sample, interleave, machine, progress, table
from benchmarks.peers import llamacpp
from forno.config import DEFAULT_MODEL
from forno.kernels.cpu import cpuinfo
from forno.loader.sources import resolve

FORNO = "forno"
SLOTS = 32
"""Requests that ``llama-server`` answers at once."""
MAX_TOKENS = 64

Measured = dict[str, float]
"""Name, with its unit, to value. In ``tok/s`` more is better; in any other unit less."""


class Engine(Protocol):
    """One engine with one model file."""

    def offline(self, batches: Sequence[int]) -> Measured:
        """Prefill, single decode and batched decode in a fresh process."""

    def server_command(self, port: int) -> list[str]:
        """What serves the model as ``servers.MODEL``."""


@dataclass(frozen=True, slots=True)
class Forno:
    model: Path
    repeats: int

    def offline(self, batches: Sequence[int]) -> Measured:
        names = ",".join(map(str, batches))
        command = ["-m", "benchmarks.engine", "--model", str(self.model), "--batches", names, "--repeats", str(self.repeats)]
        rates = json.loads(output(sys.executable, *command).splitlines()[-1])["tok_s"]
        return {f"{name} tok/s": rate for name, rate in rates.items()}

    def server_command(self, port: int) -> list[str]:
        options = ["--model", str(self.model), "--port", str(port), "--served-model-name", servers.MODEL]
        return [sys.executable, "-m", "forno", "serve", *options]


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    peer: llamacpp.LlamaCpp
    model: Path
    repeats: int
    threads: int

    def offline(self, batches: Sequence[int]) -> Measured:
        common = ["-m", str(self.model), "-t", str(self.threads), "-fa", "on"]
        sizes = ["-p", str(PREFILL), "-n", str(GENERATE), "-r", str(self.repeats), "-o", "json"]
        found = {f"prefill-{PREFILL} tok/s": 0.0, f"generate-{GENERATE} tok/s": 0.0}
        for test in json.loads(output(self.peer.tool("llama-bench"), *common, *sizes)):
            name = f"generate-{test['n_gen']}" if test["n_gen"] else f"prefill-{test['n_prompt']}"
            found[f"{name} tok/s"] = statistics.median(test["samples_ts"])
        return found | (self._batched(common, batches) if batches else {})

    def _batched(self, common: Sequence[str], batches: Sequence[int]) -> Measured:
        generated = 2 * (CONTEXT + STEPS // 2 - 128)  # centred on the context at which forno decodes
        sizes = ["-npp", "128", "-ntg", str(generated), "-npl", ",".join(map(str, batches))]
        context = ["-c", str(max(batches) * (128 + generated)), "-b", "2048", "-ub", "512", "--output-format", "jsonl"]
        lines = output(self.peer.tool("llama-batched-bench"), *common, *context, *sizes).splitlines()
        tests = [json.loads(line) for line in lines if line.startswith("{")]
        return {f"decode-{test['pl']} tok/s": test["speed_tg"] for test in tests}

    def server_command(self, port: int) -> list[str]:
        return [*self.peer.server_command(self.model, port, SLOTS, self.threads), "--alias", servers.MODEL]


def output(*command: str) -> str:
    """Standard output of a command that must succeed."""
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with status {result.returncode}:\n{result.stderr[-2000:]}")
    return result.stdout


def serve(engine: Engine, clients: Sequence[int]) -> Measured:
    """Start to first token, then chat at each number of clients."""
    port = servers.free_port()
    with servers.running(engine.server_command(port), port) as server:
        measured = {"start to first token s": server.first_token()}
        for line in servers.load(server.url, "chat", clients, MAX_TOKENS):
            name = f"chat-{line['c']}"
            measured[f"{name} tok/s"] = line["out_tok_s"]
            measured[f"{name} ttft p50 ms"] = line["ttft_p50"]
            measured[f"{name} itl p99 ms"] = line["itl_p99"]
    return measured


def measure(engine: Engine, batches: Sequence[int], clients: Sequence[int], contention: Contention) -> Measured:
    """Everything about one engine, once. Each part is a process that has ended before the next begins."""
    found: Measured = {}
    parts: list[Callable[[], Measured]] = [partial(engine.offline, batches)]
    if clients:
        parts.append(partial(serve, engine, clients))
    for part in parts:
        found |= contention.calm(part)
    return found


def engines(options: argparse.Namespace) -> dict[str, Engine]:
    """By name: forno, llama.cpp on the same file, llama.cpp on each converted one."""
    model, peer, threads = resolve(options.model), llamacpp.set_up(options.dir), cpuinfo.usable_threads()
    types = [form for form in options.types.split(",") if form]
    files = {"llama.cpp": model, **{f"llama.cpp {form}": peer.converted(model, form) for form in types}}
    for path in files.values():
        path.read_bytes()  # into the page cache
    peers = {name: LlamaCpp(peer, path, options.repeats, threads) for name, path in files.items()}
    return {FORNO: Forno(model, options.repeats), **peers}


def ratio(ours: Sample, theirs: Sample, measure: str) -> float:
    """How many times better ``ours`` is."""
    return ours.median / theirs.median if measure.endswith("tok/s") else theirs.median / ours.median


def ratios(results: Results) -> dict[str, dict[str, float]]:
    """Measure to peer to how many times better forno is."""
    found: dict[str, dict[str, float]] = {}
    for name in results.measures:
        ours = results.sample(FORNO, name)
        for engine in results.engines:
            theirs = results.sample(engine, name)
            if engine != FORNO and ours and theirs:
                found.setdefault(name, {})[engine] = round(ratio(ours, theirs, name), 2)
    return found


def report(results: Results) -> str:
    """A row per measure: each engine's median and spread, and forno's ratio to the same file and to the best."""
    peers = [engine for engine in results.engines if engine != FORNO]
    rows = []
    for name, better in ratios(results).items():
        cells = [_cell(results.sample(engine, name)) for engine in (FORNO, *peers)]
        rows.append([name, *cells, f"{better[peers[0]]:.2f}" if peers[0] in better else "", f"{min(better.values()):.2f}"])
    return table(["median (spread)", FORNO, *peers, "x same file", "x best"], rows)


def _cell(sample: Sample | None) -> str:
    return "" if sample is None else f"{sample.median:.4g} ({sample.spread:.0%})"


def run(options: argparse.Namespace) -> dict[str, Any]:
    batches, clients = _numbers(options.batches), _numbers(options.clients)
    results, contention, before = Results(), Contention(options.others), machine()
    sides = [(name, partial(measure, engine, batches, clients, contention)) for name, engine in engines(options).items()]
    for name, measured in interleave(options.rounds, sides):
        results.add(name, measured)
        progress("  " + ", ".join(f"{measure} {value:.4g}" for measure, value in measured.items()))
    print(report(results))
    print(
        f"\nOther processes used {contention.mean} cores on average, {contention.worst} at worst; "
        f"{contention.repeated} disturbed measurements were repeated."
    )
    return {
        "benchmark": "llamacpp",
        "model": options.model,
        "machine": before,
        "peer": f"{llamacpp.PACKAGE} {llamacpp.VERSION}",
        "rounds": options.rounds,
        "other_cores": {"mean": contention.mean, "worst": contention.worst, "repeated": contention.repeated},
        "results": results.as_json(),
        "ratios": ratios(results),
    }


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="forno against llama.cpp in one interleaved run.")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--types", default="Q4_0,BF16", help="other types at which llama.cpp is measured too")
    parser.add_argument("--rounds", type=int, default=3, help="how often each engine has its turn")
    parser.add_argument("--repeats", type=int, default=3, help="repeats within a turn, offline")
    parser.add_argument("--batches", default="8,32", help="batches of the offline decode")
    parser.add_argument("--clients", default="1,8,32", help="numbers of chat clients; empty: nothing over HTTP")
    parser.add_argument("--others", type=float, default=0.2, help="cores that other processes may use before a repeat")
    parser.add_argument("--dir", type=Path, default=llamacpp.DEFAULT_DIR, help="where peers live")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that children are ended too
    try:
        result = run(parser.parse_args(arguments))
    except (llamacpp.PeerError, servers.ServerError) as error:
        progress(str(error))
        raise SystemExit(1) from error
    print(json.dumps(result))


if __name__ == "__main__":
    main()
