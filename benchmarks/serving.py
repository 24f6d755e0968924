"""One engine over HTTP: how soon it answers, how it fares under each load, what it takes up while nobody asks.

Knows servers and loads, no engine.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks import processes, servers
from benchmarks.measure import Contention

START, IDLE = "start", "idle"
"""Measures beside the loads: the first token, with the memory held then; the processor time of a server that nobody asks."""
IDLE_SECONDS, WARM_UP_LIMIT = 2.0, 1800.0

Measured = dict[str, float]
Command = Callable[[int, int, int], list[str]]
"""Port, slots and tokens per slot to the command that starts a server."""


@dataclass(frozen=True, slots=True)
class Room:
    """Requests that a server answers at once, and the tokens that each has at most."""

    slots: int
    context: int


SHORT, SHARED, LONG = Room(32, 512), Room(32, 2048), Room(17, 4096)
ROOMS = (SHORT, SHARED, LONG)
ALL = Room(32, 4096)


@dataclass(frozen=True, slots=True)
class Load:
    """A workload of ``benchmarks.loadgen`` at one number of clients."""

    workload: str
    clients: int
    requests: int
    """As ``loadgen`` counts them: a conversation of ``turns`` counts as four."""
    room: Room
    max_tokens: int = 64

    @property
    def name(self) -> str:
        return f"{self.workload}-{self.clients}"

    def answered(self, url: str, seed: int) -> Measured:
        """What the clients saw. Raises ``ServerError``."""
        line = servers.load(url, self.workload, self.clients, self.requests, self.max_tokens, seed)
        found = {"tok/s": line["out_tok_s"], "ttft p50 ms": line["ttft_p50"], "itl p99 ms": line["itl_p99"]}
        if "long_ttft" in line:
            found["itl p50 ms"] = line["itl_p50"]
            found["long ttft ms"] = line["long_ttft"]
        return {f"{self.name} {what}": value for what, value in found.items() if value is not None}


LOADS = (
    Load("chat", 1, 8, SHORT),
    Load("chat", 8, 24, SHORT),
    Load("chat", 32, 96, SHORT),
    Load("rag", 32, 64, SHARED),
    Load("turns", 32, 96, SHARED),
    Load("long", 8, 8, LONG),
    Load("among", 16, 16, LONG, max_tokens=128),
)
"""Sized so that the slowest engine takes half a minute for each."""
MEASURES = (START, *(load.name for load in LOADS), IDLE)


def parts(command: Command, wanted: Collection[str], contention: Contention, paged: bool) -> Iterator[Callable[[], Measured]]:
    """What has to be run for the measures ``wanted``, a server each: one for all if the engine pages its cache, else one for
    every ``Room``, so that a cache cut into equal slots is not cut for the longest prompts while it answers short ones."""
    chosen = [load for load in LOADS if load.name in wanted]
    if paged:
        if chosen or {START, IDLE} & set(wanted):
            yield partial(measure, command, ALL, chosen, wanted, contention)
        return
    for room in ROOMS:
        loads = [load for load in chosen if load.room == room]
        first = {START, IDLE} & set(wanted) if room == SHORT else set()
        if loads or first:
            yield partial(measure, command, room, loads, first, contention)


def warm_up(command: Command) -> None:
    """Start a server once before anything counts: files get into the page cache, and what an engine compiles or packs on its
    first start, which may take it minutes, is there for the next. Raises ``ServerError``."""
    port = servers.free_port()
    with servers.running(command(port, ALL.slots, ALL.context), port) as server:
        server.first_token(WARM_UP_LIMIT)


def measure(command: Command, room: Room, loads: list[Load], wanted: Collection[str], contention: Contention) -> Measured:
    """Start one server, load it, stop it. A load that others disturb is repeated with prompts that it has not seen."""
    port, found = servers.free_port(), Measured()
    with servers.running(command(port, room.slots, room.context), port) as server:
        with contention.watched():
            seconds = server.first_token()
        if START in wanted:
            found["start to first token s"] = seconds
            found["resident MiB"] = processes.resident_mib(server.process.pid)
        for load in loads:
            seeds = itertools.count(1)
            found |= contention.calm(lambda load=load, seeds=seeds: load.answered(server.url, next(seeds)))  # type: ignore[misc]
        if IDLE in wanted:
            found["idle cores"] = idle_cores(server.process.pid)
    return found


def idle_cores(pid: int) -> float:
    """Processors that ``pid`` and its descendants use, over a stretch in which nobody asks them for anything."""
    before, started = processes.cpu_seconds(pid), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    return (processes.cpu_seconds(pid) - before) / (time.perf_counter() - started)
