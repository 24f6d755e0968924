"""``--find-capacity``: loads of a search, measured one after the other. How to search is ``forno.bench.capacity``'s."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from forno.bench.arrivals import Closed, Open, Stage
from forno.bench.bench import Bench
from forno.bench.capacity import Search, Verdict, find
from forno.bench.load import Extent
from forno.bench.metrics import met
from forno.bench.records import Run
from forno.tools.bench.plan import Plan

PROBE_REQUESTS, PROBE_SECONDS = 60, 10.0
"""At least so many counted requests, and those of so much time: 60 that all meet the SLO leave no doubt about 95 %."""
CALIBRATION = Closed(8)
"""What an open loop's search starts from: half of the rate that this reaches."""
LOWEST = 1 / 64


class _Stopped(Exception):
    """The user wants no further probe."""


async def search(plan: Plan, bench: Bench, runs: list[Run]) -> dict[str, Any]:
    """What was found, for the result file; the probes' runs are appended to ``runs``."""
    whole = plan.args.find_capacity == "concurrency"

    async def measure(value: float) -> Verdict:
        load = _load(plan, value, whole)
        runs.append(await bench.measure(load, _extent(plan, load), sum(run.load == load.words for run in runs)))
        if bench.stopped:
            raise _Stopped
        summary, counted = runs[-1].summary, [r for r in runs[-1].requests if r.counted]
        fault = "" if summary.valid or not summary.completed else summary.problems[0]
        return Verdict(sum(met(r, plan.settings.slo) for r in counted), len(counted), fault)

    share, tolerance = plan.args.capacity_share / 100, plan.args.capacity_tolerance / 100
    try:
        start = await _start(plan, bench, whole)
        return (await find(measure, Search(start, share, tolerance, lowest=1 if whole else LOWEST, whole=whole))).as_dict()
    except _Stopped:
        return {"value": None, "said": "the search was interrupted", "probes": []}


async def _start(plan: Plan, bench: Bench, whole: bool) -> float:
    if plan.args.rate or plan.args.concurrency:
        return plan.loads[0].value
    if whole:
        return 1.0
    clients = CALIBRATION.clients
    calibration = await bench.measure(CALIBRATION, Extent(requests=3 * clients, warmup_requests=clients))
    if bench.stopped:
        raise _Stopped
    return max(float(f"{calibration.summary.requests_per_s / 2:.2g}"), LOWEST)


def _load(plan: Plan, value: float, whole: bool) -> Closed | Open:
    if whole:
        return Closed(int(value), plan.args.ramp_up)
    first = plan.loads[0]
    return replace(first, stages=(Stage(value),)) if isinstance(first, Open) else Open((Stage(value),))


def _extent(plan: Plan, load: Closed | Open) -> Extent:
    """Long enough to tell, unless told otherwise."""
    extent = plan.extent(load)
    if plan.args.num_prompts or plan.args.duration:
        return extent
    more = 3 * load.clients if isinstance(load, Closed) else math.ceil(PROBE_SECONDS * load.value)
    return replace(extent, requests=max(PROBE_REQUESTS, more), seconds=math.inf)
