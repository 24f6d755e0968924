"""The streaming benchmark end to end on a tiny model's tokenizer, and its report."""

from __future__ import annotations

import cProfile
import json
from pathlib import Path

import pytest

from benchmarks import streaming
from benchmarks.streaming import PacedRunner
from forno.request import Request, Row, StepPlan
from tests.helpers.gguf_writer import write_tiny_gguf


def test_it_measures_a_server_and_ends_in_one_json_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    streaming.main(["--model", str(model), "--streams", "4", "--rate", "400", "--seconds", "0.3"])
    lines = capsys.readouterr().out.splitlines()
    result = json.loads(lines[-1])
    assert result["tok_s"] > 0
    assert set(result["cores"]) == {"event loop", "engine", "process"}
    assert all(share > 0 for share in result["cores"].values())
    assert any("send" in name for name, _ in result["profile"]["event loop"])
    assert any("commit" in name for name, _ in result["profile"]["engine"])


def test_the_paced_runner_reuses_indices_and_samples_where_asked() -> None:
    runner = PacedRunner(1e9, 100)
    first, second = runner.admit(Request("a", (1,))), runner.admit(Request("b", (1,)))
    result = runner.run(StepPlan((Row(first, 0, 1, (0,), True), Row(second, 0, 1, (1,), False))))
    assert [len(tokens) for tokens in result.tokens] == [1, 0]
    runner.release(first)
    assert runner.admit(Request("c", (1,))) == first


def test_shares_are_of_what_was_not_waiting() -> None:
    profile = cProfile.Profile()
    profile.enable()
    sorted(range(1000))
    profile.disable()
    found = streaming.shares(profile)
    assert 0.9 < sum(share for _, share in found) <= 1.001
    assert found == sorted(found, key=lambda item: -item[1])
