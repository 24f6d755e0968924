"""Metrics of what the steps waited for, from the attribution's totals. Knows no engine; the first scrape imports it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from forno.observe.attribution import RESIDUALS, Attribution
from forno.server.histogram import Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from forno.server.metrics import Family


def families(make: Family, attribution: Attribution) -> Iterator[Metric]:
    """Everything since the start, the newest steps included."""
    totals = attribution.advance()
    text = "Engine time by what it waited for (docs/guides/roofline.md); idle: no request was there."
    yield make.counters("label", "step_seconds_by_label", text, totals.seconds)
    steps = {label: float(count) for label, count in totals.steps.items()}
    yield make.counters("label", "steps_by_label", "Steps by what they waited for most.", steps)
    yield make.counters("unit", "step_flops", "Operations of the steps, by arithmetic unit.", totals.flops)
    yield make.counters("kind", "step_bytes", "Least bytes that the steps had to move.", totals.bytes)
    yield make.counter("step_roofline_seconds", "Time that the steps would take at the machine's ceilings.", totals.roofline)
    yield make.counter("step_predicted_seconds", "Time that computing the steps should have taken.", totals.predicted)
    yield make.counter("step_measured_seconds", "Time that computing the steps took.", totals.measured)
    yield make.gauge("roofline_share", "Roofline time over wall time of all steps.", totals.share)
    residuals = Histogram(RESIDUALS)
    residuals.counts, residuals.total = list(totals.residuals), totals.residual_sum
    yield make.histogram("step_prediction_residual", "Measured over predicted time of a step.", residuals)
    text = "The same of the last few hundred steps that had their cores, newest first in weight; 1: as predicted."
    yield make.gauge("step_prediction_drift", text, totals.drift)
    ceiling = asdict(attribution.roofline.ceiling)
    text = "What the machine allows: operations per second by unit, bytes per second read from dram and l3."
    yield make.gauges("resource", "ceiling", text, ceiling)
    yield make.counter(
        "step_records_missed", "Steps that fell out of the recorder before they were analysed.", attribution.missed
    )
