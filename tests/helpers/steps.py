"""Step records by hand: what they computed, and how their time is spread."""

from __future__ import annotations

from collections.abc import Sequence

from forno.observe.record import RequestRecord, StepRecord


def request_record(serial: int = 0, arrival: float = 0.0) -> RequestRecord:
    return RequestRecord(f"r{serial}", serial, num_prompt=10, max_tokens=10, arrival=arrival)


def step_record(
    spans: Sequence[tuple[int, int]],
    *,
    number: int = 0,
    start: float = 0.0,
    plan: float = 0.0,
    seconds: float = 0.01,
    masks: float = 0.0,
    output: float = 0.0,
    cpu: float | None = None,
    threads: int = 2,
    arrival: float = 0.0,
) -> StepRecord:
    """A step of (start, tokens) each, that planned, computed and made outputs for so many seconds; its threads had their
    cores unless ``cpu`` says what they had."""
    planned = start + plan
    computed = planned + seconds
    return StepRecord(
        number=number,
        start=start,
        planned=planned,
        computed=computed,
        end=computed + output,
        seconds=seconds,
        mask_seconds=masks,
        cpu_seconds=threads * seconds if cpu is None else cpu,
        requests=tuple(request_record(i, arrival) for i in range(len(spans))),
        starts=tuple(start for start, _ in spans),
        tokens=tuple(tokens for _, tokens in spans),
        outputs=len(spans),
        num_drafts=0,
        waiting=0,
        shortage=None,
        kv_reserved=0,
        kv_used=0,
    )
