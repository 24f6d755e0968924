"""Visits and facts with given numbers."""

from __future__ import annotations

from typing import Any

from forno.bench.ablate.arms import BASELINE, Arm
from forno.bench.ablate.counters import Work
from forno.bench.ablate.facts import Facts, Step
from forno.bench.ablate.study import Measured, Visit
from forno.bench.records import Distribution, LoadSample, Run, Summary

FACTS = Facts(
    weight_bytes=96.6e6,
    kv_bytes_per_token=23_040,
    num_ops=245,
    prompt=Step(flops=115e9, weight_bytes=97e6, kv_bytes=24e6, activation_bytes=519e6),
    decode=Step(flops=4e9, weight_bytes=97e6, kv_bytes=189e6, activation_bytes=16e6),
    budget=256,
    max_model_len=8192,
    formats=("q4_1", "q8_0"),
)
WORK = Work(
    requests=16,
    steps=300,
    rows=3000,
    decode_steps=90,
    prompt_tokens=2000,
    cached_tokens=0,
    output_tokens=1000,
    weight_bytes=29e9,
    kv_bytes=5e9,
    activation_bytes=3e9,
    flops=600e9,
    reserved_slots=1000,
    used_slots=970,
)


def spread(value: float) -> Distribution:
    return Distribution(count=9, mean=value, std=0, min=value, p50=value, p90=value, p95=value, p99=value, max=value)


def visit(number: int, tokens_per_s: float = 100.0, ttft: float = 50.0, goodput: float | None = None, **more: Any) -> Visit:
    summary = Summary(
        window_seconds=1,
        completed=9,
        failed=0,
        errors={},
        ttft_ms=spread(ttft),
        tpot_ms=spread(5.0),
        itl_ms=spread(9.0),
        e2e_ms=None,
        queue_ms=None,
        client_lag_ms=None,
        output_tokens_per_s=tokens_per_s,
        total_tokens_per_s=tokens_per_s,
        requests_per_s=1,
        goodput_per_s=goodput,
        goodput_share=None,
        cached_share=None,
        prompt_tokens=1,
        output_tokens=1,
        valid=True,
        problems=[],
    )
    samples = [LoadSample(time=t, in_flight=8, running=r) for t, r in ((0.5, 8.0), (5.0, 1.0))]
    run = Run(load="closed, 8 clients", value=8, repeat=number, seed=0, summary=summary, requests=[], samples=samples)
    run.window = (0.0, 1.0)
    return Visit(**{"round": number, "run": run, "work": WORK, "peak_memory": 250_000_000, "start_seconds": 1.0, **more})


def measured(arm: Arm, *visits: Visit) -> Measured:
    return Measured(arm=arm, visits=list(visits))


def baseline(rounds: int = 3, **values: Any) -> Measured:
    """Two visits per round, a little apart."""
    visits = [visit(n, 100.0 + wobble, **values) for n in range(rounds) for wobble in (-0.5 - n / 10, 0.5)]
    return measured(Arm(name=BASELINE, technique=BASELINE, title="baseline"), *visits)
