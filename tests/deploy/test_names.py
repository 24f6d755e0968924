"""Rules and dashboard without a Prometheus: names that exist, a dashboard that Grafana can import."""

from __future__ import annotations

import runpy
from typing import Any

import pytest

from tests.deploy.expressions import DASHBOARD, RAW, RECORDED, dashboard, filled, panel_expressions, panels, rules
from tests.server.test_metrics_docs import documented

EXPRESSIONS = [*[(r.get("record") or r["alert"], r["expr"]) for r in rules()], *panel_expressions()]


def known() -> set[str]:
    """Every series that a server has; that ``docs/metrics.md`` is complete, another test shows on a real one."""
    found = set()
    for name, (kind, _) in documented().items():
        found |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return found


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_every_metric_that_is_asked_for_exists(title: str, expression: str) -> None:
    raw, recorded = set(RAW.findall(expression)), set(RECORDED.findall(expression))
    assert raw or recorded or "up{" in expression
    assert raw <= known()
    assert recorded <= {rule.get("record") for rule in rules()}


def test_every_metric_that_helps_to_decide_is_shown() -> None:
    """What only forno has must be seen somewhere, or nobody will find it."""
    shown = {name for _, expression in panel_expressions() for name in RAW.findall(expression)}
    shown = {name.rsplit("_bucket", 1)[0].removesuffix("_sum").removesuffix("_count") for name in shown}
    for name in (
        "step_seconds_by_label_total",
        "roofline_share",
        "step_prediction_drift",
        "slo_requests_total",
        "kv_used_slot_steps_total",
    ):
        assert f"forno:{name}" in shown
    for name in ("ghost_cache_hit_share", "prefix_cache_missed_tokens_total", "startup_seconds", "ceiling"):
        assert f"forno:{name}" in shown


def test_labels_that_are_named_exist() -> None:
    labels = {label for _, (_, labels) in documented().items() for label in labels} | {"le", "model_name", "instance"}
    for panel in panels():
        for target in panel["targets"]:
            legend = target["legendFormat"]
            assert {part.split("}}")[0] for part in legend.split("{{")[1:]} <= labels, legend


def test_the_file_is_what_its_source_writes() -> None:
    made = runpy.run_path(str(DASHBOARD.with_name("dashboard.py")))["text"]()
    assert DASHBOARD.read_text(encoding="utf-8") == made, "run python deploy/grafana/dashboard.py"


def test_the_dashboard_can_be_imported() -> None:
    """What Grafana's importer and its panels rely on."""
    board = dashboard()
    assert board["id"] is None
    assert board["schemaVersion"] >= 36
    assert board["uid"]
    assert board["title"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    source, *others = board["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    for item in [*panels(), *(t for p in panels() for t in p["targets"]), *others]:
        assert item["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels():
        assert panel["type"] in ("stat", "timeseries", "bargauge", "heatmap")
        assert panel["description"]
        assert [t["refId"] for t in panel["targets"]] == list("ABCDEFGH"[: len(panel["targets"])])
    for _, expression in panel_expressions():
        filled(expression)


def test_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_alerts_say_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len(alerts) >= 6
    for alert in alerts:
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert alert["annotations"]["summary"]
        assert len(alert["annotations"]["description"]) > 40
