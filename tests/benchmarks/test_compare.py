"""What the comparison prints, and how it reads the peers' own output."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare
from benchmarks.compare import FORNO, Forno, LlamaCpp, ratios, report
from benchmarks.measure import Results
from benchmarks.peers import llamacpp


@pytest.fixture
def results() -> Results:
    found = Results()
    for factor in (1.0, 1.1, 0.9):
        found.add(FORNO, {"prefill-512 tok/s": 3000 * factor, "start to first token s": 0.5})
        found.add("llama.cpp", {"prefill-512 tok/s": 500 * factor, "start to first token s": 1.0})
        found.add("llama.cpp Q4_0", {"prefill-512 tok/s": 1500 * factor, "start to first token s": 0.4})
    return found


def test_ratios_say_how_many_times_better_forno_is(results: Results) -> None:
    found = ratios(results)
    assert found["prefill-512 tok/s"] == {"llama.cpp": 6.0, "llama.cpp Q4_0": 2.0}
    assert found["start to first token s"] == {"llama.cpp": 2.0, "llama.cpp Q4_0": 0.8}


def test_the_table_shows_the_same_file_and_the_best_peer(results: Results) -> None:
    line = next(line for line in report(results).splitlines() if line.startswith("prefill"))
    assert "3000 (20%)" in line
    assert line.split()[-2:] == ["6.00", "2.00"]


def fake_tools(monkeypatch: pytest.MonkeyPatch, outputs: dict[str, str]) -> list[list[str]]:
    """Replace every process by canned output, chosen by a word of the command; returns the commands asked for."""
    asked: list[list[str]] = []

    def run(command: tuple[str, ...], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(list(command))
        text = next(text for word, text in outputs.items() if any(word in part for part in command))
        return subprocess.CompletedProcess(command, 0, text, "")

    monkeypatch.setattr(compare.subprocess, "run", run)
    return asked


def test_llamacpp_output_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = [
        {"n_prompt": 512, "n_gen": 0, "samples_ts": [470.0, 480.0, 900.0]},
        {"n_prompt": 0, "n_gen": 128, "samples_ts": [160.0, 164.0, 166.0]},
    ]
    batched = "llama noise\n" + json.dumps({"pl": 8, "speed_tg": 250.5}) + "\n"
    asked = fake_tools(monkeypatch, {"llama-bench": json.dumps(tests), "llama-batched-bench": batched})
    engine = LlamaCpp(llamacpp.LlamaCpp(Path("/peers")), Path("m.gguf"), 3, 2)
    assert engine.offline([8]) == {"prefill-512 tok/s": 480.0, "generate-128 tok/s": 164.0, "decode-8 tok/s": 250.5}
    assert all("-fa" in command for command in asked)


def test_fornos_output_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    last = json.dumps({"tok_s": {"prefill-512": 3000.0, "decode-8": 900.0}})
    fake_tools(monkeypatch, {"benchmarks.engine": f"a table\n{last}\n"})
    assert Forno(Path("m.gguf"), 3).offline([8]) == {"prefill-512 tok/s": 3000.0, "decode-8 tok/s": 900.0}


def test_a_failing_tool_shows_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="No such file"):
        compare.output("ls", "/nowhere/at/all")


def test_every_tool_that_is_built_is_looked_for_in_the_build() -> None:
    peer = llamacpp.LlamaCpp(Path("/peers/llamacpp"))
    assert peer.tool("llama-server") == "/peers/llamacpp/build/bin/llama-server"
    command = peer.server_command(Path("m.gguf"), 9, 32, 2)
    assert command[command.index("-c") + 1] == "16384"
