"""What ``deploy/`` asks Prometheus: the expressions of its rules and of its dashboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "forno.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "forno.json"
RAW = re.compile(r"(?<![\w:])forno:\w+")
RECORDED = re.compile(r"(?<![\w:])(?:model|slo|label):forno_[\w:]+")


def rules() -> list[dict[str, Any]]:
    """Every rule; recording ones have ``record``, alerts ``alert``."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def panels() -> list[dict[str, Any]]:
    """Every panel that shows something."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def panel_expressions() -> Iterator[tuple[str, str]]:
    """(title, expression), as the panels have them."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def filled(expression: str) -> str:
    """The expression as Grafana sends it, everything selected."""
    for name, value in (("$model", ".*"), ("$instance", ".*"), ("$__rate_interval", "1m")):
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression
