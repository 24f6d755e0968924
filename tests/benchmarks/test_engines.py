"""How each engine is asked, and how its own output is read. No engine is run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import engines, servers
from benchmarks.engines import Setting, make
from benchmarks.peers import llamacpp
from benchmarks.peers.place import PeerError

SETTING = Setting(Path("m.gguf"), Path("/peers"), threads=2, vocab=100, repeats=3, install=False)


def fake_tools(monkeypatch: pytest.MonkeyPatch, outputs: dict[str, str]) -> list[list[str]]:
    """Replace every process by canned output, chosen by a word of the command; returns the commands asked for."""
    asked: list[list[str]] = []

    def output(command: Sequence[str], *_: Any, **__: Any) -> str:
        asked.append(list(command))
        return next(text for word, text in outputs.items() if any(word in part for part in command))

    monkeypatch.setattr(engines, "output", output)
    return asked


def test_llamacpp_output_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = [
        {"n_prompt": 512, "n_gen": 0, "samples_ts": [470.0, 480.0, 900.0]},
        {"n_prompt": 0, "n_gen": 128, "samples_ts": [160.0, 164.0, 166.0]},
    ]
    batched = "llama noise\n" + json.dumps({"pl": 8, "speed_tg": 250.5}) + "\n"
    asked = fake_tools(monkeypatch, {"llama-bench": json.dumps(tests), "llama-batched-bench": batched})
    found = make("llama.cpp", SETTING).rates([8])
    assert found == {"prefill-512 tok/s": 480.0, "generate-128 tok/s": 164.0, "decode-8 tok/s": 250.5}
    assert all("-fa" in command for command in asked)


def test_fornos_output_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    last = json.dumps({"tok_s": {"prefill-512": 3000.0, "decode-8": 900.0}})
    fake_tools(monkeypatch, {"benchmarks.engine": f"a table\n{last}\n"})
    assert make("forno", SETTING).rates([8]) == {"prefill-512 tok/s": 3000.0, "decode-8 tok/s": 900.0}


@pytest.mark.parametrize(
    ("name", "module"), [("openvino int8", "openvino"), ("vllm", "vllm"), ("transformers", "transformers")]
)
def test_a_script_runs_in_the_peers_own_environment(monkeypatch: pytest.MonkeyPatch, name: str, module: str) -> None:
    asked = fake_tools(monkeypatch, {"benchmarks.peers.inside": json.dumps({"tok_s": {"decode-8": 5.0}})})
    engine = make(name, SETTING)
    monkeypatch.setitem(vars(engine), "model", Path("/weights"))
    assert engine.rates([8, 32]) == {"decode-8 tok/s": 5.0}
    (command,) = asked
    assert f"/peers/{module}/venv/bin/python" in command
    assert f"benchmarks.peers.inside.{module}" in command
    assert command[command.index("--batches") + 1] == "8,32"
    assert command[command.index("--vocab") + 1] == "100"


@pytest.mark.parametrize("name", ["forno", "llama.cpp", "vllm"])
def test_a_server_serves_the_model_under_the_name_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    engine = make(name, SETTING)
    if name == "vllm":
        monkeypatch.setitem(vars(engine), "model", Path("/weights"))
    assert engine.has_server
    command = engine.server_command(7000, 4, 512)
    assert servers.MODEL in command
    assert "7000" in command


def test_slots_share_llamacpps_context() -> None:
    command = make("llama.cpp", SETTING).server_command(9, 32, 2048)
    assert command[0] == "/peers/llamacpp/build/bin/llama-server"
    assert (command[command.index("-np") + 1], command[command.index("-c") + 1]) == ("32", str(32 * 2048))


@pytest.mark.parametrize("name", ["openvino int8", "transformers"])
def test_engines_without_a_server_say_so(name: str) -> None:
    assert not make(name, SETTING).has_server


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vlm", "'vlm'"),
        ("", "''"),
        ("openvino", "int8, int4"),
        ("openvino fp4", "'fp4'"),
        ("vllm int8", "'int8'"),
        ("forno x", "'x'"),
    ],
)
def test_unknown_engines_are_refused_by_name(name: str, said: str) -> None:
    with pytest.raises(PeerError, match=said):
        make(name, SETTING)


@pytest.mark.parametrize("name", ["llama.cpp Q4_0", "vllm", "openvino int4", "transformers"])
def test_what_is_not_there_is_not_installed_behind_the_users_back(tmp_path: Path, name: str) -> None:
    setting = Setting(tmp_path / "m.gguf", tmp_path, threads=2, vocab=100, repeats=3, install=False)
    with pytest.raises(PeerError, match="--skip-setup"):
        make(name, setting).prepare()
    assert not list(tmp_path.iterdir())


def test_the_versions_of_llamacpp_are_those_of_its_source() -> None:
    assert make("llama.cpp", SETTING).versions() == {llamacpp.PACKAGE: llamacpp.VERSION}
