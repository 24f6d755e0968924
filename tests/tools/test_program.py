"""``forno program`` from a config to the page."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from forno.errors import CheckpointError, ConfigError, UnsupportedError
from forno.program.shape import Span
from forno.tools import program
from tests.helpers.models import CONFIGS


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-llama" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIGS["llama"]))
    return path


def run(capsys: pytest.CaptureFixture[str], *argv: Any) -> str:
    parser = argparse.ArgumentParser()
    program.add_arguments(parser)
    assert program.run(parser.parse_args([str(a) for a in argv])) == 0
    return capsys.readouterr().out


def test_prints_before_and_after(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, config, "--format", "q8_0", "--batch", 4)
    assert out.startswith("tiny-llama: llama, ")
    assert "4 sequences decoding after 512 tokens (4 rows, 4 outputs)" in out
    before, after = out.split("After fusion (qkv, ")
    assert "gate_proj" in before
    assert "gate_proj" not in after
    assert "46 ops become 21; the work is the same" in after


def test_a_directory_names_its_config(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, config.parent) == run(capsys, config)


def test_passes_are_chosen_by_name(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = json.loads(run(capsys, config, "--json", "--passes", "residual, qkv", "--disable-passes", "qkv"))
    assert chosen["after"]["passes"] == ["activation_types", "residual"]
    with pytest.raises(ConfigError, match="unknown pass nope"):
        run(capsys, config, "--passes", "nope")


def test_json_carries_the_step_and_the_costs(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = json.loads(run(capsys, config, "--json", "--batch", 2, "--context", 9, "--prefill", 5, "--kv-cache-dtype", "int8"))
    assert out["step"] == {"spans": [[9, 1], [9, 1], [0, 5]], "outputs": 3}
    assert out["kv_bytes_per_token"] == 2 * 2 * (2 * 16 + 2 * 2)  # of keys and values: int8 codes, a bf16 scale per 32 of them
    flops = [sum(out[side]["total"][u] for u in ("int8", "bf16", "fp32")) for side in ("before", "after")]
    assert 0 < flops[1] < flops[0]  # four of the prompt's rows end at the last attention


def test_step_shapes() -> None:
    assert program.step_shape(None, 100, 0).spans == (Span(100, 1),)
    assert program.step_shape(None, 100, 7).spans == (Span(0, 7),)
    assert program.step_shape(1, 100, 7).outputs == 2
    with pytest.raises(ConfigError, match="needs a sequence"):
        program.step_shape(0, 100, 0)
    with pytest.raises(ConfigError, match="--prefill must not be negative"):
        program.step_shape(1, 100, -1)


@pytest.mark.parametrize("text", ["{", "[]", "\ud800", '{"model_type": ' + "[" * 100_000])
def test_files_that_are_no_config_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(CheckpointError, match=str(path)):
        program.load_program(str(path))


def test_unsupported_models_say_what_is_supported(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "gpt_neox"}')
    with pytest.raises(UnsupportedError, match="supported are llama"):
        program.load_program(str(path))
