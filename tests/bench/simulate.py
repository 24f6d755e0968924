"""Believable results without a server: requests through a model of continuous batching, in virtual time.

A step takes a fixed time, more per running request and per prompt token; at most ``seats`` requests run. It is no model of
forno, only of what its results look like: queues grow at loads above the capacity and empty after a surge.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from forno.bench.measures import DEFINITIONS
from forno.bench.metrics import summarize
from forno.bench.records import LoadSample, RequestRecord, Result, Run, Stage


@dataclass(slots=True)
class Machine:
    """Seconds of a step, and how many requests fit."""

    fixed: float = 0.004
    per_request: float = 0.0004
    per_prompt_token: float = 0.00015
    seats: int = 32
    seed: int = 0
    running: list[tuple[RequestRecord, int]] = field(default_factory=list)

    def serve(self, arrivals: Iterable[RequestRecord], wanted: int, clients: int = 0) -> list[LoadSample]:
        """Fill the records' times. With ``clients`` the loop is closed: a request is sent when a client is free."""
        rng = random.Random(self.seed)
        todo, waiting, samples, now = list(arrivals), list[RequestRecord](), list[LoadSample](), 0.0
        while todo or waiting or self.running:
            busy = len(waiting) + len(self.running)
            while todo and (busy < clients if clients else todo[0].scheduled <= now):
                request = todo.pop(0)
                request.scheduled = now if clients else request.scheduled
                request.sent = request.scheduled + rng.uniform(1e-5, 4e-4)
                waiting.append(request)
                busy += 1
            if not busy:
                now = todo[0].scheduled
                continue
            admitted = waiting[: self.seats - len(self.running)]
            del waiting[: len(admitted)]
            for request in admitted:
                request.queue_seconds = max(0.0, now - request.sent)
            prompt = sum(r.prompt_tokens - r.cached_tokens for r in admitted)
            self.running += [(r, wanted + rng.randint(-wanted // 4, wanted // 4)) for r in admitted]
            seconds = self.fixed + self.per_request * len(self.running) + self.per_prompt_token * prompt
            now += seconds * rng.lognormvariate(0, 0.05)
            self.running = [(r, left) for r, left in self.running if not _token(r, left, now)]
            if not samples or now - samples[-1].time > 0.05:
                counts = {"running": float(len(self.running)), "waiting": float(len(waiting))}
                in_flight = len(waiting) + len(self.running)
                samples.append(LoadSample(time=now, in_flight=in_flight, kv_usage=len(self.running) / self.seats, **counts))
        return samples


def _token(r: RequestRecord, wanted: int, now: float) -> bool:
    """One more token of a request; whether it was the last."""
    if r.first is None:
        r.first = now
    else:
        assert r.last is not None
        r.gaps = [*r.gaps, now - r.last]
    r.last = r.ended = now
    r.output_tokens += 1
    return r.output_tokens >= wanted


def window_of(requests: list[RequestRecord]) -> tuple[float, float]:
    counted = [r for r in requests if r.counted]
    return min(r.sent for r in counted), max(r.ended for r in counted)


def prompts(count: int, seed: int, sessions: int = 0) -> list[RequestRecord]:
    rng = random.Random(seed)
    found = []
    for i in range(count):
        tokens = rng.randint(40, 200)
        session, turn = (i % sessions, i // sessions) if sessions else (-1, 0)
        cached = min(tokens, 32 * turn)
        found.append(
            RequestRecord(
                index=i,
                session=session,
                turn=turn,
                scheduled=0.0,
                prompt_tokens=tokens,
                cached_tokens=cached,
                tells_cached=True,
            )
        )
    return found


def closed(
    clients: int, repeat: int = 0, slo: dict[str, float] | None = None, machine: Machine | None = None, count: int = 0
) -> Run:
    """A closed loop of so many clients."""
    seed = 100 * clients + repeat
    requests = prompts(count or max(24, 4 * clients), seed)
    machine = machine or Machine()
    machine.seed = seed
    samples = machine.serve(requests, wanted=48, clients=clients)
    for r in requests[:clients] if len(requests) > 3 * clients else ():
        r.counted = False
    window = window_of(requests)
    return Run(
        load=f"closed, {clients} client{'s' if clients > 1 else ''}",
        value=float(clients),
        repeat=repeat,
        seed=seed,
        summary=summarize(requests, window, slo or {}),
        requests=requests,
        samples=samples,
        window=window,
    )


def opened(
    stages: list[tuple[float, float]], repeat: int = 0, slo: dict[str, float] | None = None, machine: Machine | None = None
) -> Run:
    """Poisson arrivals in stages of (requests per second, seconds)."""
    seed = int(1000 * stages[0][0]) + repeat
    rng, now, requests = random.Random(seed), 0.0, list[RequestRecord]()
    ends, end = [], 0.0
    for rate, seconds in stages:
        end += seconds
        ends.append((rate, end))
    for stage, (rate, end) in enumerate(ends):
        while (now := now + rng.expovariate(rate)) < end:
            (request,) = prompts(1, rng.randrange(1 << 30))
            request.index, request.stage, request.scheduled = len(requests), stage, now
            requests.append(request)
        now = end
    machine = machine or Machine()
    machine.seed = seed
    samples = machine.serve(requests, wanted=48)
    window = window_of(requests)
    found, start = [], 0.0
    for stage, (rate, end) in enumerate(ends if len(ends) > 1 else []):
        inside = [r for r in requests if r.stage == stage]
        summary = summarize(inside, (start, end), slo or {})
        found.append(Stage(stage=stage, load=f"{rate:g} requests/s", value=rate, start=start, end=end, summary=summary))
        start = end
    return Run(
        load=f"poisson, {' then '.join(f'{rate:g}' for rate, _ in stages)} requests/s",
        value=max(rate for rate, _ in stages),
        repeat=repeat,
        seed=seed,
        summary=summarize(requests, window, slo or {}),
        requests=requests,
        samples=samples,
        stages=found,
        window=window,
    )


def result(runs: list[Run], slo: dict[str, float] | None = None, model: str = "smollm2-135m") -> Result:
    return Result(
        tool="forno bench 0.1.0",
        started="2026-11-29T12:00:00Z",
        url="http://127.0.0.1:8000",
        model=model,
        server={"version": "forno 0.1.0", "max_num_seqs": 32},
        client={"machine": "AMD EPYC, 2 cores", "python": "3.11.2", "command": "forno bench --workload chat -c 1,4,16"},
        workload={"name": "chat", "seed": 1, "max_tokens": 48},
        slo=slo or {},
        definitions=dict(DEFINITIONS),
        runs=runs,
    )
