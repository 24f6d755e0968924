"""``deploy/`` in a real Prometheus that scrapes a real server: rules evaluate, and every panel has something to show."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from forno.config import SpeculativeConfig
from tests.deploy.expressions import DEPLOY, RULES, filled, panel_expressions, panels, rules
from tests.server.harness import Running, running

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's package: apt-get install prometheus"),
]
QUIET: set[str] = set()
"""Recorded series that need a longer history than the test's."""


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_is_valid() -> None:
    run("promtool", "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))


def test_the_rules_do_what_they_say() -> None:
    run("promtool", "test", "rules", str(DEPLOY / "prometheus" / "forno.rules.test.yml"))


class Prometheus:
    """A Prometheus of its own, on a free loopback port."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=30)

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = self.http.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", (expression, answer)
        return answer["data"]["result"] if answer["data"]["resultType"] != "scalar" else [answer["data"]["result"]]

    def eventually(self, expression: str, seconds: float = 60.0) -> list[dict[str, Any]]:
        """Its result once there is one: scrapes and rules come when they come."""
        end = time.monotonic() + seconds
        while not (found := self.query(expression)):
            assert time.monotonic() < end, f"no data: {expression}"
            time.sleep(0.2)
        return found


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Running]:
    options = {"slo": "fast:ttft=60,tpot=60,e2e=60;strict:e2e=0.000001", "speculative": SpeculativeConfig(speculative="ngram")}
    with running(model_path, **options) as server:  # type: ignore[arg-type]
        server.serving.metrics.startup_total = 1.0  # what the command's start measures
        yield server


@pytest.fixture(scope="module")
def prometheus(server: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Scrapes ``server`` every 200 ms with the rules as they are shipped."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
    config["rule_files"] = [str(RULES)]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [server.url.removeprefix("http://")]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    )
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(["prometheus", *options, "--log.level=warn"], stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while not _is_ready(address):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end, "Prometheus did not start"
            time.sleep(0.1)
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait()


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/-/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def busy(server: Running, prometheus: Prometheus) -> Prometheus:
    """Prometheus, once it has seen the server before, during and after some work."""
    prometheus.eventually("up == 1")
    for number in range(30):
        name = ("fast", "strict")[number % 2]
        asked = {"prompt": [40, 41, 42] * 30, "max_tokens": 20, "temperature": 0, "ignore_eos": True, "stream": True}
        assert server.post("/v1/completions", asked, headers={"x-slo-class": name}).status_code == 200
    server.post("/v1/completions", {"prompt": ""})
    prometheus.eventually('sum(forno:request_success_total{finished_reason="length"}) == 30')
    server.complete(prompt=[40, 41, 42] * 30, max_tokens=20)
    server.post("/v1/completions", {"prompt": ""})
    return prometheus


def test_every_scrape_succeeds(busy: Prometheus) -> None:
    [target] = busy.http.get("/api/v1/targets").json()["data"]["activeTargets"]
    assert target["health"] == "up", target["lastError"]


def test_every_rule_evaluates(busy: Prometheus) -> None:
    busy.eventually("model:forno_ttft_seconds:p50")
    groups = busy.http.get("/api/v1/rules").json()["data"]["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    assert len(found) == len(rules())
    assert [(rule["name"], rule["lastError"]) for rule in found if rule["health"] != "ok"] == []


@pytest.mark.parametrize("name", [rule["record"] for rule in rules() if "record" in rule])
def test_every_recorded_series_has_data(busy: Prometheus, name: str) -> None:
    busy.eventually(name)


@pytest.mark.parametrize("alert", [rule for rule in rules() if "alert" in rule], ids=lambda rule: rule["alert"])
def test_every_alert_compares_what_is_there(busy: Prometheus, alert: dict[str, Any]) -> None:
    busy.query(alert["expr"])


@pytest.mark.parametrize(("title", "expression"), list(panel_expressions()))
def test_every_panel_has_data(busy: Prometheus, title: str, expression: str) -> None:
    busy.eventually(filled(expression))


def test_variables_find_the_server(busy: Prometheus) -> None:
    found = busy.eventually("forno:engine_healthy")
    assert found[0]["metric"]["model_name"] == "tiny"
    assert found[0]["metric"]["instance"]


def test_goodput_is_what_happened(busy: Prometheus) -> None:
    """Every request of one class met its limits, none of the other did."""
    busy.eventually('slo:forno_goodput:ratio_rate5m{slo="fast"} == 1')
    busy.eventually('slo:forno_goodput:ratio_rate5m{slo="strict"} == 0')


def test_there_are_panels() -> None:
    assert len(panels()) > 25
