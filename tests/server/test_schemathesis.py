"""The server against its own OpenAPI document, with schemathesis' inputs and checks: statuses, media types, bodies and
headers as documented, bad input refused, good input taken, never a 500."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from forno.server.app import ENDPOINTS
from tests.helpers.safetensors_writer import write_tiny_directory
from tests.helpers.tiny import TinyModel
from tests.server.harness import Running, running

BODIES = sorted(e.path for e in ENDPOINTS if e.body is not None)


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model of little context: a generated request may ask for 128 answers of any length."""
    path = write_tiny_directory(tmp_path_factory.mktemp("models") / "tiny", TinyModel(context=64))
    with running(path, blocks=600) as server:
        yield server
        server.wait_idle()


@pytest.mark.parametrize(
    "chosen",
    [
        ("--include-method", "GET"),
        # Bodies have rules that a schema cannot state (the context's length), and the fuzzer learns the model's name.
        ("--include-method", "POST", "--exclude-checks", "positive_data_acceptance"),
    ],
    ids=["GET", "POST"],
)
def test_the_document_as_it_stands(brief: Running, tmp_path: Path, chosen: tuple[str, ...]) -> None:
    """As anyone would run it, all checks on that hold for every seed."""
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{brief.url}/openapi.json", "--no-color"]
    done = subprocess.run([*command, "--max-examples", "15", *chosen], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", BODIES)
def test_requests_that_reach_the_model(brief: Running, path: str) -> None:
    """The served model's name filled in, so that generated requests are computed. Some break rules between fields that
    a schema cannot state (``min_tokens`` above ``max_tokens``): these get a 400."""
    load_all_checks()
    document = brief.http.get("/openapi.json").json()
    for schema in document["components"]["schemas"].values():
        if "model" in schema["properties"]:
            optional = "model" not in schema.get("required", ())
            schema["properties"]["model"] = {"enum": [brief.model, *([None] if optional else [])]}
    operation = schemathesis.openapi.from_dict(document)[path]["POST"]

    @settings(max_examples=30, deadline=None, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    @given(case=st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode)))
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=brief.url, excluded_checks=[positive_data_acceptance])

    check()
