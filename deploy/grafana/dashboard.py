"""Writes ``forno.json``, the Grafana dashboard: ``python deploy/grafana/dashboard.py``. The panels are these lines; the file is
what Grafana imports.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("forno.json")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
"""Columns of Grafana's grid."""
LABEL_COLORS = {
    "weights": "blue",
    "kv": "semi-dark-purple",
    "compute": "green",
    "overhead": "yellow",
    "starved": "red",
    "idle": "#808080",
}
"""The same label has the same color wherever it is."""
SELECT = 'model_name=~"$model",instance=~"$instance"'
WINDOW = "$__rate_interval"
Panel = dict[str, Any]


def rate(metric: str, by: str = "", extra: str = "") -> str:
    """Per second, summed over servers."""
    return (
        f"sum by ({by}) (rate({metric}{{{SELECT}{extra}}}[{WINDOW}]))"
        if by
        else f"sum(rate({metric}{{{SELECT}{extra}}}[{WINDOW}]))"
    )


def gauge(metric: str, extra: str = "") -> str:
    return f"{metric}{{{SELECT}{extra}}}"


def quantile(q: float, histogram: str) -> str:
    return f"histogram_quantile({q}, {rate(histogram + '_bucket', 'le')})"


def ratio(part: str, whole: str) -> str:
    return f"{part} / {whole}"


# -- panels -------------------------------------------------------------------------------------------------------


def panel(
    kind: str, title: str, text: str, queries: dict[str, str], unit: str, width: int, height: int, **options: Any
) -> Panel:
    """``queries``: legend to expression, in order; a legend may hold ``{{label}}``. ``text`` is what its (i) says."""
    defaults: dict[str, Any] = {"unit": unit, "min": 0, "color": {"mode": "palette-classic"}, **options.pop("defaults", {})}
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": SOURCE,
            "expr": expression,
            "legendFormat": legend,
            "range": not options.get("instant", False),
            "instant": options.get("instant", False),
        }
        for number, (legend, expression) in enumerate(queries.items())
    ]
    return {
        "type": kind,
        "title": title,
        "description": text,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height, "x": 0, "y": 0},
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": options.pop("overrides", [])},
        "options": options.pop("options", {}),
    }


def stat(
    title: str, text: str, expression: str, unit: str, steps: list[tuple[float | None, str]] | None = None, **more: Any
) -> Panel:
    """One number, colored by thresholds if it has any."""
    marks = [{"value": value, "color": color} for value, color in steps or [(None, "text")]]
    defaults = {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": marks}, **more}
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value" if steps else "none",
        "graphMode": "area",
        "textMode": "value",
        "justifyMode": "auto",
        "orientation": "auto",
    }
    return panel("stat", title, text, {"": expression}, unit, 3, 4, defaults=defaults, options=options)


def lines(
    title: str, text: str, queries: dict[str, str], unit: str, width: int = 8, stacked: bool = False, **defaults: Any
) -> Panel:
    """Values over time."""
    custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 70 if stacked else 8, "showPoints": "never", "spanNulls": False}
    custom["stacking"] = {"mode": "normal" if stacked else "none", "group": "A"}
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    colors = [_colored(label, color) for label, color in LABEL_COLORS.items()] if "{{label}}" in queries else []
    return panel(
        "timeseries",
        title,
        text,
        queries,
        unit,
        width,
        8,
        defaults={"custom": custom, **defaults},
        options=options,
        overrides=colors,
    )


def bars(title: str, text: str, queries: dict[str, str], unit: str, width: int = 8, **defaults: Any) -> Panel:
    """The latest values side by side."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "horizontal",
        "displayMode": "basic",
        "showUnfilled": True,
        "valueMode": "color",
    }
    return panel("bargauge", title, text, queries, unit, width, 8, defaults=defaults, options=options, instant=True)


def heat(title: str, text: str, histogram: str, unit: str, width: int = 8) -> Panel:
    """How a histogram moves over time."""
    options = {
        "calculate": False,
        "yAxis": {"unit": unit, "axisPlacement": "left"},
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "reverse": False},
        "cellGap": 1,
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": False},
    }
    found = panel("heatmap", title, text, {"{{le}}": rate(histogram + "_bucket", "le")}, unit, width, 8, options=options)
    found["targets"][0]["format"] = "heatmap"
    return found


def _colored(name: str, color: str) -> dict[str, Any]:
    value = {"id": "color", "value": {"mode": "fixed", "fixedColor": color}}
    return {"matcher": {"id": "byName", "options": name}, "properties": [value]}


def latency(title: str, text: str, histogram: str) -> Panel:
    return lines(title, text, {f"p{q * 100:g}": quantile(q, histogram) for q in (0.5, 0.95, 0.99)}, "s", 8)


# -- the dashboard ------------------------------------------------------------------------------------------------

GOOD_BAD = [(None, "red"), (0.9, "yellow"), (0.95, "green")]
LOW_HIGH = [(None, "green"), (0.8, "yellow"), (0.95, "red")]
SLO = "forno:slo_requests_total"
BY_LABEL = "forno:step_seconds_by_label_total"
CONTENT: dict[str, list[Panel]] = {
    "Now": [
        stat("Running", "Requests that hold KV blocks.", f"sum({gauge('forno:num_requests_running')})", "short"),
        stat(
            "Waiting", "Requests that wait for blocks, seats or tokens.", f"sum({gauge('forno:num_requests_waiting')})", "short"
        ),
        stat("Output", "Tokens generated per second.", rate("forno:generation_tokens_total"), "short", decimals=0),
        stat(
            "Prompts",
            "Prompt tokens per second, those found in the cache included.",
            rate("forno:prompt_tokens_total"),
            "short",
            decimals=0,
        ),
        stat(
            "Goodput",
            "Requests that met every limit of their class.",
            ratio(rate(SLO, extra=',met="true"'), rate(SLO)),
            "percentunit",
            GOOD_BAD,
        ),
        stat(
            "Roofline",
            "What the steps reached of what the machine allows.",
            f"avg({gauge('forno:roofline_share')})",
            "percentunit",
            max=1,
        ),
        stat(
            "KV used",
            "KV blocks that running requests hold.",
            f"max({gauge('forno:kv_cache_usage_perc')})",
            "percentunit",
            LOW_HIGH,
            max=1,
        ),
        stat(
            "Healthy",
            "1 while every engine computes.",
            f"min({gauge('forno:engine_healthy')})",
            "short",
            [(None, "red"), (1, "green")],
        ),
    ],
    "What the machine waits for": [
        lines(
            "Time by what it waited for",
            "weights: reading them from memory; kv: reading the cache; compute: arithmetic; overhead: what no ceiling "
            "explains; starved: the cores were taken away; idle: no request.",
            {"{{label}}": ratio(rate(BY_LABEL, "label"), f"scalar({rate(BY_LABEL)})")},
            "percentunit",
            12,
            stacked=True,
            max=1,
        ),
        lines(
            "Share of the roofline",
            "Time that the steps would take at the machine's ceilings, over the time they took.",
            {
                "{{instance}}": ratio(
                    rate("forno:step_roofline_seconds_total", "instance"), rate(BY_LABEL, "instance", ',label!="idle"')
                )
            },
            "percentunit",
            6,
            max=1,
        ),
        lines(
            "Measured over predicted",
            "Time of computing the steps. Away from 1: something else uses the machine, or it changed. Drift: of the last "
            "steps that had their cores.",
            {
                "{{instance}}": ratio(
                    rate("forno:step_measured_seconds_total", "instance"),
                    rate("forno:step_predicted_seconds_total", "instance"),
                ),
                "drift of {{instance}}": gauge("forno:step_prediction_drift"),
            },
            "none",
            6,
        ),
        lines("Operations", "By arithmetic unit.", {"{{unit}}": rate("forno:step_flops_total", "unit")}, "ops", 6),
        lines(
            "Memory traffic",
            "Least bytes that the steps had to move.",
            {"{{kind}}": rate("forno:step_bytes_total", "kind")},
            "Bps",
            6,
            stacked=True,
        ),
        lines(
            "Step time",
            "Wall time of a step in the runner.",
            {f"p{q * 100:g}": quantile(q, "forno:step_seconds") for q in (0.5, 0.95, 0.99)},
            "s",
            6,
        ),
        lines(
            "Tokens per step",
            "Prompts and outputs together.",
            {"mean": ratio(rate("forno:iteration_tokens_total_sum"), rate("forno:iteration_tokens_total_count"))},
            "short",
            6,
        ),
    ],
    "Latency": [
        latency("Time to first token", "Arrival at the engine to the first token.", "forno:time_to_first_token_seconds"),
        latency("Between tokens", "Between two chunks of one stream.", "forno:inter_token_latency_seconds"),
        latency("Whole request", "Arrival to the last token.", "forno:e2e_request_latency_seconds"),
        latency("Time per output token", "First token to last, per token.", "forno:request_time_per_output_token_seconds"),
        latency("Queue", "Arrival to the first step.", "forno:request_queue_time_seconds"),
        heat("Between tokens, all of them", "How many gaps of which length.", "forno:inter_token_latency_seconds", "s"),
    ],
    "Goodput": [
        lines(
            "Goodput by class",
            "Requests that met every limit of their class.",
            {"{{slo}}": ratio(rate(SLO, "slo", ',met="true"'), rate(SLO, "slo"))},
            "percentunit",
            max=1,
        ),
        lines(
            "Missed limits",
            "Per second; a request may miss several.",
            {"{{slo}}: {{limit}}": rate("forno:slo_missed_total", "slo, limit")},
            "reqps",
        ),
        bars(
            "Limits",
            "What each class promises.",
            {"{{slo}}: {{limit}}": f"max by (slo, limit) ({gauge('forno:slo_limit_seconds')})"},
            "s",
        ),
    ],
    "Requests": [
        lines(
            "Running and waiting",
            "Waiting for a prefix: another request computes it now.",
            {
                "running": f"sum({gauge('forno:num_requests_running')})",
                "waiting: {{reason}}": f"sum by (reason) ({gauge('forno:num_requests_waiting_by_reason')})",
            },
            "short",
            stacked=True,
        ),
        lines(
            "Finished",
            "By reason; abort: the client left.",
            {"{{finished_reason}}": rate("forno:request_success_total", "finished_reason")},
            "reqps",
            stacked=True,
        ),
        lines(
            "Refused and preempted",
            "Refused before the queue, by reason; preempted: a request lost its KV blocks.",
            {
                "refused: {{reason}}": rate("forno:admission_rejections_total", "reason"),
                "preempted": rate("forno:num_preemptions_total"),
            },
            "reqps",
        ),
    ],
    "KV cache": [
        lines(
            "Use and waste",
            "Blocks that running requests hold; of their token slots, those that hold no token.",
            {
                "used: {{instance}}": gauge("forno:kv_cache_usage_perc"),
                "wasted": "1 - " + ratio(rate("forno:kv_used_slot_steps_total"), rate("forno:kv_reserved_slot_steps_total")),
            },
            "percentunit",
            max=1,
        ),
        lines(
            "Prefix hits",
            "Tokens found, of those looked up.",
            {
                "hits": ratio(rate("forno:prefix_cache_hits_total"), rate("forno:prefix_cache_queries_total")),
            },
            "percentunit",
            max=1,
        ),
        lines(
            "Misses by reason",
            "Prompt tokens that had to be computed, by why the cache had no more of the prompt.",
            {
                "{{reason}}": rate("forno:prefix_cache_missed_tokens_total", "reason"),
            },
            "short",
            stacked=True,
        ),
        bars(
            "What another cache size would hit",
            "Share of prompt tokens that a cache of so many times this size would have found, from hashes alone.",
            {
                "{{capacity}}": f"sort(avg by (capacity) ({gauge('forno:ghost_cache_hit_share')}))",
            },
            "percentunit",
            max=1,
        ),
        lines(
            "Look-ups that ended in a miss",
            "Per second, by reason.",
            {"{{reason}}": rate("forno:prefix_cache_misses_total", "reason")},
            "reqps",
        ),
        lines(
            "Evictions",
            "Cached blocks that were overwritten, per second.",
            {"blocks": rate("forno:prefix_cache_evictions_total")},
            "short",
        ),
    ],
    "Machine and process": [
        bars(
            "Ceilings",
            "Operations per second by unit, bytes per second by memory, as measured at the start.",
            {
                "{{resource}}": f"max by (resource) ({gauge('forno:ceiling')})",
            },
            "short",
        ),
        bars(
            "Start",
            "Seconds of each phase; some run at the same time.",
            {
                "{{phase}}": f"max by (phase) ({gauge('forno:startup_seconds')})",
                "in all": f"max({gauge('forno:startup_total_seconds')})",
            },
            "s",
        ),
        lines(
            "Guessed tokens",
            "With --speculative: how many, and how many were right.",
            {
                "guessed": rate("forno:spec_decode_num_draft_tokens_total"),
                "right": rate("forno:spec_decode_num_accepted_tokens_total"),
            },
            "short",
        ),
    ],
}


def arranged() -> list[Panel]:
    """The panels with their places: rows of the grid, filled from the left."""
    found: list[Panel] = []
    x = y = tallest = 0
    for title, panels in CONTENT.items():
        y, x = y + tallest, 0
        row = {"type": "row", "title": title, "collapsed": False, "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}, "panels": []}
        found.append({"id": len(found) + 1, **row})
        y, tallest = y + 1, 0
        for item in panels:
            place = item["gridPos"]
            if x + place["w"] > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            found.append({"id": len(found) + 1, **item, "gridPos": {**place, "x": x, "y": y}})
            x, tallest = x + place["w"], max(tallest, place["h"])
    return found


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """One that is filled with the values of a label."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "query": {"query": query, "refId": "values"},
        "definition": query,
        "options": [],
        "regex": "",
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def dashboard() -> dict[str, Any]:
    source = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
        "options": [],
        "regex": "",
        "includeAll": False,
        "multi": False,
        "current": {},
    }
    model = variable("model", "Model", "label_values(forno:engine_healthy, model_name)")
    instance = variable("instance", "Server", 'label_values(forno:engine_healthy{model_name=~"$model"}, instance)')
    return {
        "id": None,
        "uid": "forno-serving",
        "title": "forno",
        "tags": ["forno", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "description": "What forno's servers wait for, how long requests take, and what the KV cache holds.",
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "timezone": "",
        "time": {"from": "now-30m", "to": "now"},
        "timepicker": {},
        "links": [],
        "annotations": {"list": []},
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "weekStart": "",
        "templating": {"list": [source, model, instance]},
        "panels": arranged(),
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
