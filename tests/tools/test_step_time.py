"""``forno program --time``: predicted times by kind of op."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.models import MODELS
from forno.__main__ import main
from forno.kernels.cpu import ceilings
from forno.models import build_program
from forno.program import passes
from forno.program.ceiling import Ceiling
from forno.program.shape import StepShape
from forno.tools import step_time
from tests.helpers.models import CONFIGS
from tests.helpers.runners import Model


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "known", lambda *_: Ceiling(2e12, 1e12, 5e11, 5e10, 2e11))


def test_parts_and_kinds_are_the_whole() -> None:
    found = step_time.predict(Model.tiny(format="q4_1", kv="bf16").program, StepShape.decode(2, 40))
    assert sum(found["parts_us"].values()) == pytest.approx(found["us"])
    assert sum(kind["us"] for kind in found["kinds"].values()) == pytest.approx(found["us"])
    assert {"qkv", "gate|up", "attention", "head"} <= found["kinds"].keys()
    assert found["limit_us"] < found["us"]


def test_what_is_hidden_is_said() -> None:
    program = build_program(MODELS["smollm2-135m"])
    program = passes.apply(program.with_formats(dict.fromkeys(program.weights, "q4_1")))
    assert "hidden" not in step_time.as_table(step_time.predict(program, StepShape.decode(1, 200)))
    assert "hidden behind others" in step_time.as_table(step_time.predict(program, StepShape.decode(32, 600)))


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    assert main(["program", str(tmp_path), "--time", "--batch", "4"]) == 0
    text = capsys.readouterr().out
    assert "4 sequences decoding after 512 tokens" in text
    assert "It waits for: weights" in text
    assert main(["program", str(tmp_path), "--time", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["us"] > 0
