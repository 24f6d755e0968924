"""What streaming costs: the CPU time of everything but the kernels, per second, at a fixed rate of tokens.

    python -m benchmarks.streaming [--streams 32] [--rate 3000] [--seconds 1]

A server whose runner computes nothing and returns tokens at ``--rate`` runs in a process of its own; this one holds the
streams open and reads them. Prints the CPU time of the server's two busy threads as shares of one core, what they spend it
on, and ends in one JSON line. Shares come from cProfile, which slows down what calls many functions; totals come from the
threads' clocks without it. Knows the server and the engine, no kernel.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import os
import pstats
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import machine, table
from benchmarks.servers import MODEL, free_port
from forno.config import DEFAULT_MODEL, EngineConfig, ServerConfig
from forno.engine.async_engine import AsyncEngine
from forno.engine.build import assemble
from forno.loader.open import open_checkpoint
from forno.loader.sources import resolve
from forno.request import Request, StepPlan, StepResult
from forno.server.app import build_app
from forno.server.engine_metrics import EngineMetrics
from forno.server.main import bind
from forno.server.serve import SWITCH_SECONDS, Server, loop_factory
from forno.server.serving import Serving
from forno.text import ConstraintCompiler, load_chat_template, load_tokenizer

MAX_TOKENS = 8000
LINES = 12
"""Functions listed per thread."""


class PacedRunner:
    """A ``Runner`` that sleeps where kernels would compute: a step of ``n`` tokens takes ``n / rate`` seconds."""

    num_blocks, block_size, max_model_len = 1 << 16, 32, 16384

    def __init__(self, rate: float, vocab: int) -> None:
        self.rate, self.vocab = rate, vocab
        self.between: Callable[[], None] = lambda: None
        """Called once per step, on the engine's thread."""
        self._free: list[int] = []
        self._count = 0
        self._due = 0.0

    def admit(self, request: Request) -> int:
        self._count += 1
        return self._free.pop() if self._free else self._count - 1

    def release(self, index: int) -> None:
        self._free.append(index)

    def run(self, plan: StepPlan) -> StepResult:
        self.between()
        sampled = sum(row.sample for row in plan.rows)
        now = time.perf_counter()
        self._due = max(self._due, now - 0.1) + sampled / self.rate  # what was late is made up for
        time.sleep(max(0.0, self._due - now))
        tokens = tuple([((row.request * 7919 + row.start * 31) % self.vocab,) if row.sample else () for row in plan.rows])
        return StepResult(tokens, seconds=time.perf_counter() - now)


def serving_on(runner: PacedRunner, model: str) -> Serving:
    """What ``forno serve`` builds, with ``runner`` in the place of the kernels."""
    checkpoint = open_checkpoint(resolve(model))
    tokenizer = load_tokenizer(checkpoint)
    runner.vocab = tokenizer.vocab_size
    engine = AsyncEngine(assemble(runner, tokenizer, EngineConfig()))
    template = load_chat_template(checkpoint, tokenizer, "")
    constraints, metrics = ConstraintCompiler(tokenizer), EngineMetrics(engine, MODEL, "forno")
    return Serving(engine, tokenizer, template, constraints, metrics, MODEL, int(time.time()))


# -- the server's process ---------------------------------------------------------------------------------------


class Watch:
    """Measures one server from inside, once all streams flow."""

    def __init__(self, serving: Serving, runner: PacedRunner, options: argparse.Namespace) -> None:
        self.serving, self.runner, self.options = serving, runner, options
        self._engine_thread = 0

    async def measure(self) -> dict[str, Any]:
        """Clocks first, without a profiler; then each thread under one."""
        engine = self.serving.engine
        self.runner.between = self._note_thread
        while engine.stats().running < self.options.streams or not self._engine_thread:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        before, tokens, started = self._clocks(), engine.stats().generation_tokens, time.perf_counter()
        await asyncio.sleep(self.options.seconds)
        after, wall = self._clocks(), time.perf_counter() - started
        rate = (engine.stats().generation_tokens - tokens) / wall
        shares = {name: round((after[name] - before[name]) / wall, 4) for name in before}
        return {"tok_s": round(rate, 1), "cores": shares, "profile": await self._profiles()}

    def _note_thread(self) -> None:
        self._engine_thread = threading.get_ident()

    def _clocks(self) -> dict[str, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        engine = time.clock_gettime(time.pthread_getcpuclockid(self._engine_thread))
        return {"event loop": time.thread_time(), "engine": engine, "process": usage.ru_utime + usage.ru_stime}

    async def _profiles(self) -> dict[str, list[tuple[str, float]]]:
        loop = cProfile.Profile()
        loop.enable()
        await asyncio.sleep(self.options.seconds)
        loop.disable()
        engine, end = cProfile.Profile(), time.perf_counter() + self.options.seconds
        done = threading.Event()

        def between() -> None:
            if time.perf_counter() < end:
                engine.enable()
            else:
                engine.disable()
                done.set()

        self.runner.between = between
        await asyncio.to_thread(done.wait)
        self.runner.between = lambda: None
        return {"event loop": shares(loop), "engine": shares(engine)}


def shares(profile: cProfile.Profile) -> list[tuple[str, float]]:
    """Functions by their own time, as shares of all that was not waiting; the largest first."""
    own: dict[str, float] = {}
    for (file, line, name), (_, _, seconds, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if "sleep" in name or "acquire" in name or name in ("<method 'run_until_complete' of 'uvloop.Loop' objects>",):
            continue
        where = f"{Path(file).name}:{line} " if line else ""
        own[where + name] = own.get(where + name, 0.0) + seconds
    total = sum(own.values())
    return [(name, round(seconds / total, 4)) for name, seconds in sorted(own.items(), key=lambda item: -item[1])[:LINES]]


def serve(options: argparse.Namespace) -> None:
    """Serve until measured; prints the result."""
    runner = PacedRunner(options.rate, 0)
    serving = serving_on(runner, options.model)
    config = ServerConfig(port=options.serve)
    listener = bind(config)
    sys.setswitchinterval(SWITCH_SECONDS)
    server = Server(serving, build_app(serving), config, lambda: print("ready", flush=True))

    async def run() -> dict[str, Any]:
        task = asyncio.create_task(server.serve_on(listener))
        result = await Watch(serving, runner, options).measure()
        server.should_exit = server.force_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return result

    with asyncio.Runner(loop_factory=loop_factory()) as loop:
        print(json.dumps(loop.run(run())), flush=True)
    listener.close()


# -- the clients' process ---------------------------------------------------------------------------------------


async def read_stream(port: int) -> None:
    """Hold one stream open and read it until the server ends it."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Go on."}], "stream": True, "ignore_eos": True}
    content = json.dumps(body | {"max_tokens": MAX_TOKENS}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + content)
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass
    writer.close()


async def read_all(port: int, streams: int) -> None:
    await asyncio.gather(*(read_stream(port) for _ in range(streams)))


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start the server, load it, and return what it found."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.streaming", "--serve", str(port), "--model", options.model]
    command += ["--streams", str(options.streams), "--rate", str(options.rate), "--seconds", str(options.seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit("the server did not start")
        asyncio.run(read_all(port, options.streams))
        found: dict[str, Any] = json.loads(process.stdout.read())
    return {"benchmark": "streaming", "streams": options.streams, "machine": machine()} | found


def report(result: dict[str, Any]) -> Iterator[str]:
    rate, cores = result["tok_s"], result["cores"]
    yield f"{rate:.0f} tokens per second in {result['streams']} streams"
    rows = [[name, f"{share:.1%}", f"{share / rate * 1e6:.1f}"] for name, share in cores.items()]
    yield table(["CPU time", "of one core", "us per token"], rows)
    for name, functions in result["profile"].items():
        rows = [[where, f"{share:.1%}", f"{share * cores[name] / rate * 1e6:.2f}"] for where, share in functions]
        yield "\n" + table([name, "share", "us per token"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="CPU time of streaming, without the kernels.")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="whose tokenizer and chat template to use")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rate", type=float, default=3000, help="tokens per second over all streams")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options)
        return
    result = run(options)
    print("\n".join(report(result)))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
