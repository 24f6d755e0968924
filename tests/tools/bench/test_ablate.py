"""The command: options to a plan, facts of every arm, and the recommendation. Studies are played, no server is started."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from forno.bench.ablate.arms import COMBINED, Arm, every_arm
from forno.bench.ablate.report import Ablation
from forno.bench.ablate.study import Measured, Plan
from forno.bench.arrivals import Closed, Open
from forno.bench.read import read_result
from forno.errors import ConfigError, ModelError
from forno.options import Parser
from forno.tools.bench import ablate
from forno.tools.bench.facts import facts_of
from tests.bench.ablate.made import baseline, measured, visit
from tests.helpers.gguf_writer import write_tiny_gguf
from tests.helpers.safetensors_writer import write_tiny_directory
from tests.helpers.tiny import TinyModel


def parsed(*words: str) -> argparse.Namespace:
    parser = Parser(prog="forno bench ablate")
    ablate.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", form="q8_0"))


class Played:
    """A study whose arms have given output rates, in tokens per second."""

    rates: Mapping[str, float] = MappingProxyType({})
    again: float = 150.0

    def __init__(self, plan: Plan, **options: object) -> None:
        self.plan, self.stopped = plan, False

    def stop(self) -> None:
        self.stopped = True

    async def measure(self, arms: Sequence[Arm]) -> tuple[Measured, list[Measured]]:
        rates = {**self.rates, COMBINED: self.again}
        return baseline(), [
            measured(arm, *(visit(n, rates.get(arm.name, 100.0) + n / 10) for n in range(3)))
            if rates.get(arm.name, 100.0) > 0
            else Measured(arm=arm, error="no memory")
            for arm in arms
        ]


def played(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: str,
    *words: str,
    again: float = 150.0,
    **rates: float,
) -> Ablation:
    kind = type("Study", (Played,), {"rates": {k.replace("_", "-"): v for k, v in rates.items()}, "again": again})
    monkeypatch.setattr(ablate, "Study", kind)
    assert ablate.run(parsed("--model", model, "--json", *words)) == int(0 in rates.values())
    return msgspec.json.decode(capsys.readouterr().out, type=Ablation)


def test_options_become_a_plan() -> None:
    plan = ablate.plan_of(parsed("--model", "m", "--serve=--threads 2", "--concurrency", "8", "--slo", "ttft=200", "tpot=20"))
    assert (plan.load, plan.flags, plan.slo) == (Closed(8), ("--threads", "2"), {"ttft": 200.0, "tpot": 20.0})
    assert (plan.extent.requests, plan.extent.warmup_requests) == (32, 8)
    open_loop = ablate.plan_of(parsed("--rate", "3", "--num-prompts", "50"))
    assert isinstance(open_loop.load, Open)
    assert (open_loop.load.value, open_loop.extent.requests) == (3.0, 50)
    for words, message in (
        (("--rounds", "0"), "--rounds"),
        (("--max-kl", "nan"), "--max-kl"),
        (('--serve=--a "b',), "--serve"),
    ):
        with pytest.raises(ConfigError, match=message):
            ablate.plan_of(parsed(*words))


def test_a_further_model_that_is_not_there_is_refused_before_anything_starts(model: str) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        ablate.run(parsed("--model", model, "--also-model", "/nowhere.gguf"))


def test_a_study_stopped_before_its_first_round_is_no_failure_and_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    class Stopped(Played):
        async def measure(self, arms: Sequence[Arm]) -> tuple[Measured, list[Measured]]:
            return Measured(arm=Arm(name="baseline", technique="baseline", title="baseline")), []

    monkeypatch.setattr(ablate, "Study", Stopped)
    assert ablate.run(parsed("--model", model)) == ablate.INTERRUPTED
    out, err = capsys.readouterr()
    assert (out, "nothing to compare" in err) == ("", True)


def test_arms_are_listed_without_a_server(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate.run(parsed("--model", model, "--list", "--each-pass")) == 0
    out = capsys.readouterr().out
    assert "static               batching     --batching static\n" in out
    assert "--disable-passes early_gather" in out
    assert "--quantize" not in out, "the file's weights are quantized already"


def test_every_arm_is_one_that_serve_takes(tmp_path: Path) -> None:
    directory = str(write_tiny_directory(tmp_path / "model", TinyModel(tied=False), "bf16"))
    base = facts_of(directory)
    arms = every_arm(base.formats, each_pass=True)
    assert {arm.name for arm in arms if arm.technique == "weights"} == {"weights-int8", "weights-int4"}
    facts = {arm.name: facts_of(directory, arm.flags) for arm in arms}
    assert facts["weights-int8"].weight_bytes < 0.6 * base.weight_bytes
    assert facts["kv-int8"].kv_bytes_per_token < base.kv_bytes_per_token < facts["kv-float32"].kv_bytes_per_token
    assert facts["no-fusion"].num_ops > base.num_ops
    assert facts["materialized"].prompt.activation_bytes > base.prompt.activation_bytes
    assert facts["chunk-64"].budget == 64
    assert facts["static"] == base


def test_options_that_serve_refuses_are_refused_before_anything_starts(model: str) -> None:
    with pytest.raises(ConfigError, match="--serve: unknown option --thread"):
        ablate.run(parsed("--model", model, "--serve=--thread 2"))


def test_what_helps_is_combined_and_measured_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    found = played(monkeypatch, capsys, model, chunk_512=120, chunk_64=110, ngram=130, static=60)
    assert found.best is not None
    assert found.best.arms == ["ngram", "chunk-512"]
    assert found.best.command == [
        *("forno", "serve", "--model", model),
        *("--speculative", "ngram", "--max-num-batched-tokens", "512"),
    ]
    assert found.best.said.startswith("n-gram speculation, chunks of 512: output tok/s +50 % (")
    static = next(line for line in found.arms if line.found.arm.name == "static")
    assert static.sentence.startswith("Output −40 % (")
    assert "A step computed 10 tokens instead of 10" in static.sentence


def test_what_does_not_help_together_is_not_recommended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    found = played(monkeypatch, capsys, model, ngram=130, again=100.0)
    assert found.best is not None
    assert (found.best.arms, found.best.command) == ([], ["forno", "serve", "--model", model])
    assert "within the noise" in found.best.said


def test_nothing_helps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str) -> None:
    found = played(monkeypatch, capsys, model, static=60)
    assert found.best is not None
    assert found.best.said == "The baseline: no single change improved output tok/s beyond the noise."


def test_an_arm_that_failed_has_a_line_that_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    found = played(monkeypatch, capsys, model, "--only", "static,ngram", static=0)
    assert found.arms[0].sentence == "Not measured: no memory"


def test_result_files_are_written_and_can_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    played(monkeypatch, capsys, model, "--only", "static", "--output-dir", str(tmp_path / "results"), static=60)
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["baseline.json", "static.json"]
    result = read_result(tmp_path / "results" / "static.json")
    assert [run.repeat for run in result.runs] == [0, 1, 2]


def test_the_tables_print(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str) -> None:
    monkeypatch.setattr(ablate, "Study", type("Study", (Played,), {"rates": {"static": 60.0, "kv-int8": 0.0}}))
    assert ablate.run(parsed("--model", model, "--only", "static,kv", "--slo", "ttft=200")) == 1
    out = capsys.readouterr().out
    assert "static batching" in out
    assert "−40%" in out
    assert "Not measured: no memory" in out
    assert "Best setting found." in out
