"""The families as Prometheus would read them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from forno.observe.attribution import Attribution
from forno.server import roofline_metrics
from forno.server.metrics import Exposition, Family
from tests.observe.test_attribution import Source, run_of
from tests.observe.test_roofline import ROOFLINE


def read(attribution: Attribution) -> dict[str, dict[str, float]]:
    """Sample name -> last label's value -> number."""
    make = Family("forno", {"model_name": "m", "engine": "0"})
    text = Exposition(lambda: roofline_metrics.families(make, attribution)).text().decode()
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = next((v for k, v in sample.labels.items() if k not in ("model_name", "engine")), "")
            found.setdefault(sample.name, {})[key] = sample.value
    return found


def test_all_families_with_their_labels() -> None:
    source = Source(run_of(8, gap=0.001))
    attribution = Attribution(ROOFLINE, source)
    found = read(attribution)
    assert set(found["forno:step_seconds_by_label_total"]) == {"weights", "kv", "compute", "overhead", "starved", "idle"}
    assert set(found["forno:step_flops_total"]) == {"int8", "bf16", "fp32"}
    assert set(found["forno:step_bytes_total"]) == {"weights", "kv", "activations"}
    assert set(found["forno:ceiling"]) == {"int8", "bf16", "fp32", "dram", "l3"}
    assert found["forno:step_prediction_residual_bucket"]["+Inf"] == 8
    assert found["forno:step_prediction_residual_count"][""] == 8
    assert sum(found["forno:steps_by_label_total"].values()) == 8
    assert found["forno:roofline_share"][""] > 0
    assert found["forno:step_prediction_drift"][""] > 0
    assert found["forno:step_records_missed_total"][""] == 0


def test_a_scrape_takes_in_the_newest_steps() -> None:
    source = Source(run_of(2))
    attribution = Attribution(ROOFLINE, source)
    read(attribution)
    source.held = run_of(5)
    assert read(attribution)["forno:step_prediction_residual_count"][""] == 5
