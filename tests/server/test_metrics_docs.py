"""``docs/metrics.md`` against the exposition of a real server, in both directions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forno.config import SpeculativeConfig
from forno.server.metrics import VLLM_NAMES
from tests.server.harness import running

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(forno:\w+)`( \*)? \| (\w+) \| ([^|]+) \|([^|]*)\| (.+) \|$", re.MULTILINE)
COMMON = {"model_name", "engine", "le"}


def documented() -> dict[str, tuple[str, set[str]]]:
    """Name to type and labels."""
    rows = ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, _, kind, _, labels, _ in rows}


@pytest.fixture(scope="module")
def exposed(model_path: Path) -> dict[str, tuple[str, set[str]]]:
    """The same, as a server tells it that has done something."""
    with running(model_path, slo="fast:ttft=1,tpot=1,e2e=1", speculative=SpeculativeConfig(speculative="ngram")) as server:
        server.serving.metrics.startup_total = 1.0  # what the command's start measures
        for _ in range(2):
            server.complete(prompt=[40] * 100, max_tokens=3)
        server.post("/v1/completions", {"prompt": ""})
        text = server.http.get("/metrics").text
    found = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = (family.type, {label for sample in family.samples for label in sample.labels} - COMMON)
    return found


def test_every_metric_is_documented_and_every_documented_one_exists(exposed: dict[str, tuple[str, set[str]]]) -> None:
    assert documented() == exposed


def test_every_row_is_read() -> None:
    lines = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(lines) == len(documented())


def test_what_only_forno_has_is_marked() -> None:
    for name, mark, kind, *_ in ROW.findall(DOCUMENT.read_text(encoding="utf-8")):
        base = name.removeprefix("forno:")
        base = base.removesuffix("_total") if kind == "counter" else base
        assert bool(mark) == (base not in VLLM_NAMES), name
