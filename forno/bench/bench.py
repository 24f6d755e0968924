"""Measuring loads on one server: each run with prompts of its own, summarized. It knows no options and prints nothing."""

from __future__ import annotations

import asyncio
import gc
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate, chain
from math import isfinite
from typing import Any, TypeVar

from msgspec import structs

from forno.bench import records
from forno.bench.arrivals import Closed, Open, Stage
from forno.bench.client import Target, open_client, open_session
from forno.bench.corpus import Corpus
from forno.bench.gauges import Gauges
from forno.bench.load import Extent, Gathered, Run, Trace
from forno.bench.metrics import MAX_LAG_MS, ClientHealth, summarize
from forno.bench.probe import counter, settle
from forno.bench.ruler import Ruler, measure
from forno.bench.workload import Call, Conversation, Workload

T = TypeVar("T")
Load = Closed | Open | Trace
SEED_STEP = 1_000_003
"""Between the seeds of runs: far enough that users' own seeds do not meet."""
PROBE_TOKENS = 4
SHORTEST = 1.0
"""Seconds of a run that say something of the client's use of its core."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all runs have in common."""

    workload: Workload
    seed: int = 0
    slo: Mapping[str, float] = field(default_factory=dict)
    max_lag_ms: float = MAX_LAG_MS
    fresh: bool = True
    """Give every run prompts that no run before had, so that none finds another's in the prefix cache."""


class Bench:
    """Measures loads on one server, one after the other. Made by ``prepare``."""

    def __init__(self, target: Target, settings: Settings, ruler: Ruler, notes: Sequence[str], has_gauges: bool) -> None:
        self.target, self.settings, self.ruler, self.notes = target, settings, ruler, list(notes)
        self._has_gauges = has_gauges
        self._number = 0
        self._run: Run | None = None
        self._salt = secrets.token_hex(8)
        self.stopped = False
        self.watch: Callable[[str, Extent, Gathered], None] = lambda load, extent, got: None
        """Called with what a run will gather, when it begins."""
        self.finished: Callable[[records.Run], None] = lambda run: None
        """Called with a run that is over."""

    async def measure(self, load: Load, extent: Extent, repeat: int = 0) -> records.Run:
        """Put ``load`` on the server until ``extent`` is measured."""
        seed = self.settings.seed + SEED_STEP * self._number * self.settings.fresh
        target = self._target_of_run()
        self._number += 1
        conversations = _begun(self.settings.workload.conversations(self.ruler, seed))
        origin = 0.0

        def clock() -> float:
            return time.perf_counter() - origin

        async with open_client(target, clock) as client, open_session(target) as session:
            self._run = Run(client, conversations, extent, clock)
            if self.stopped:  # before this run was there to be stopped
                self._run.stop()
            self.watch(load.words, extent, self._run.got)
            gauges = Gauges(session, target.url) if self._has_gauges else None
            gc.collect()
            gc.freeze()  # what was made before is no garbage to look through during the run
            origin = time.perf_counter()  # only now: what came before is no lag of the load
            got = await self._run.go(load, seed, gauges)
            gc.unfreeze()
        run = self._summarized(load, got, repeat, seed)
        self.finished(run)
        return run

    def _target_of_run(self) -> Target:
        """Requests of a run share a salt of the prefix cache where the server knows salts, so that old runs do not matter."""
        if not self.settings.fresh or "cache_salt" not in self.target.fields:
            return self.target
        return replace(self.target, fields={**self.target.fields, "cache_salt": f"{self._salt}-{self._number}"})

    def _summarized(self, load: Load, got: Gathered, repeat: int, seed: int) -> records.Run:
        slo = self.settings.slo
        share = got.cpu_seconds / got.ended if got.ended > SHORTEST else None
        health = ClientHealth(got.loop_lags, share, self.settings.max_lag_ms)
        return records.Run(
            load=load.words,
            value=load.value,
            repeat=repeat,
            seed=seed,
            summary=summarize(got.records, got.window, slo, health, [*self.notes, *got.notes]),
            requests=got.records,
            samples=got.samples,
            stages=_stages(load, got, slo),
            window=got.window,
            interrupted=got.interrupted,
        )

    def stop(self) -> None:
        """End the run that is under way, with what is there; no other should follow."""
        self.stopped = True
        if self._run is not None:
            self._run.stop()


def _stages(load: Load, got: Gathered, slo: Mapping[str, float]) -> list[records.Stage]:
    """Each step of a load that has several, by itself: rates of its time, latencies of the requests that were due in it."""
    if not isinstance(load, Open) or len(load.stages) < 2:
        return []
    ends = [min(end, got.ended) for end in accumulate(stage.seconds for stage in load.stages)]
    found, start = [], 0.0
    for number, (stage, end) in enumerate(zip(load.stages, ends, strict=True)):
        window = (max(start, got.window[0]), end)
        own = [structs.replace(r, counted=r.counted and r.stage == number) for r in got.records]
        summary = summarize(own, window, slo)
        value = (stage.rate + stage.last_rate) / 2
        words = _words_of(number, stage)
        found.append(records.Stage(stage=number, load=words, value=value, start=start, end=end, summary=summary))
        start = end
    return found


def _words_of(number: int, stage: Stage) -> str:
    rates = f"{stage.rate:g}" if stage.last_rate == stage.rate else f"{stage.rate:g} to {stage.last_rate:g}"
    return f"step {number + 1}: {rates} requests/s" + (f" for {stage.seconds:g} s" if isfinite(stage.seconds) else "")


def _begun(conversations: Iterator[Conversation]) -> Iterator[Conversation]:
    """The same conversations, the first already made: what they all need is read before the run, not in it."""
    first = next(conversations, None)
    return iter(()) if first is None else chain([first], conversations)


async def prepare(target: Target, settings: Settings, scrape: bool = True) -> Bench:
    """Ask the server what it takes, measure its tokens, and be ready. Raises ``ConfigError`` if it does not answer."""
    salted = replace(target, fields={**target.fields, "cache_salt": "probe"}) if settings.fresh else target
    target, notes = await settle(salted, _probe_call(settings.workload))
    async with open_session(target) as session:
        ruler = await measure(counter(session, target), Corpus.load())
        has_gauges = scrape and any(value is not None for value in await Gauges(session, target.url)())
    return Bench(target, settings, ruler, notes, has_gauges)


def _probe_call(workload: Workload) -> Call:
    """One short request as the workload makes them."""
    call = next(workload.conversations(Ruler(), seed=-1)).first()
    return replace(call, max_tokens=min(call.max_tokens, PROBE_TOKENS), at=None)


def run_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run an async function on the fastest event loop there is."""
    factory = import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())
