"""What the comparison runs, what it says of failures, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import compare, engines, serving
from benchmarks.compare import FORNO, Failures, parser, parts, play, ratios, ready, report
from benchmarks.engines import Measured, Setting
from benchmarks.measure import Contention, Results
from benchmarks.processes import ChildError
from tests.helpers.gguf_writer import write_tiny_gguf


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


def test_what_one_side_lacks_has_no_ratio() -> None:
    found = Results()
    found.add(FORNO, {"idle cores": 0.0, "chat-1 tok/s": 300.0, "resident MiB": 150.0})
    found.add("vllm", {"idle cores": 0.1, "prefill-512 tok/s": 1200.0, "resident MiB": 600.0})
    assert ratios(found) == {"resident MiB": {"vllm": 4.0}}
    lines = {line.split("  ")[0]: line.split() for line in report(found).splitlines()}
    assert lines["prefill-512 tok/s"][2:] == ["1200", "(0%)"]
    assert lines["resident MiB"][-1] == "4.00"


class Fake:
    """An engine that remembers what it was asked, and breaks where it is told to."""

    has_server = paged = True

    def __init__(self, broken: str = "") -> None:
        self.asked: list[list[int]] = []
        self.broken = broken

    def prepare(self) -> None:
        if self.broken == "set-up":
            raise ChildError("no wheel for this machine")

    def rates(self, batches: Sequence[int]) -> Measured:
        self.asked.append(list(batches))
        if self.broken == "rates":
            raise ChildError("out of memory")
        return {"prefill-512 tok/s": 100.0, "generate-128 tok/s": 10.0, **{f"decode-{b} tok/s": 1.0 * b for b in batches}}

    def server_command(self, port: int, slots: int, context: int) -> list[str]:
        return ["false"]

    def versions(self) -> dict[str, str]:
        return {"fake": "1"}


def test_only_what_is_wanted_is_run() -> None:
    engine = Fake()
    names = [name for name, _ in parts(engine, ["prefill-512", "decode-32"], True, Contention())]
    assert names == ["rates"]
    assert [name for name, _ in parts(engine, ["chat-8"], False, Contention())] == []
    assert [name for name, _ in parts(engine, ["chat-8"], True, Contention())] == ["server 1"]


def test_only_what_is_wanted_is_kept() -> None:
    results = play({"a": Fake()}, ["generate-128", "decode-32"], [], 2, Contention(), Failures())
    assert results.as_json() == {
        "generate-128 tok/s": {"a": {"median": 10.0, "spread": 0.0, "values": [10.0, 10.0]}},
        "decode-32 tok/s": {"a": {"median": 32.0, "spread": 0.0, "values": [32.0, 32.0]}},
    }


def test_a_failure_is_noted_once_and_the_rest_goes_on() -> None:
    good, bad, failures = Fake(), Fake("rates"), Failures()
    results = play({"bad": bad, "good": good}, ["decode-8"], [], 2, Contention(), failures)
    assert results.engines == ["good"]
    assert (len(bad.asked), len(good.asked)) == (1, 2), "what failed is not tried again"
    assert failures.reasons == {"bad": {"rates": "ChildError: out of memory"}}


def test_a_server_that_dies_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures()
    play({"a": Fake()}, ["decode-8", "chat-1"], ["a"], 1, Contention(), failures)
    assert "ended with status 1" in failures.reasons["a"]["server 1"]
    assert "server 1 failed" in capsys.readouterr().err


def test_a_run_reports_failures_and_ends_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = {FORNO: Fake(), "vllm": Fake("set-up")}
    monkeypatch.setattr(engines, "make", lambda name, setting: made[name])
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    flags = ["--model", str(model), "--engines", "forno,vllm", "--measures", "decode-8", "--rounds", "1", "--others", "inf"]
    with pytest.raises(SystemExit, match="1"):
        compare.main(flags)
    out = capsys.readouterr().out
    assert "vllm FAILED: set-up" in out
    result = json.loads(out.splitlines()[-1])
    assert result["failures"] == {"vllm": {"set-up": "ChildError: no wheel for this machine"}}
    assert result["results"]["decode-8 tok/s"][FORNO]["median"] == 8.0
    assert result["versions"] == {FORNO: {"fake": "1"}}


def test_a_served_engine_serves_once_before_anything_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(engines, "make", lambda name, setting: Fake())
    monkeypatch.setattr(serving, "warm_up", lambda command: started.append(command(1, 2, 3)))
    setting, failures = Setting(Path("m.gguf"), Path("/peers"), threads=2, vocab=100, repeats=1, install=False), Failures()
    assert list(ready(["a", "b"], setting, ["b"], failures)) == ["a", "b"]
    assert started == [["false"]]


def test_an_engine_that_cannot_serve_is_not_measured() -> None:
    setting, failures = Setting(Path("m.gguf"), Path("/peers"), threads=2, vocab=100, repeats=1, install=False), Failures()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "make", lambda name, setting: Fake())
        assert ready(["a"], setting, ["a"], failures) == {}
    assert "ended with status 1" in failures.reasons["a"]["set-up"]


def test_unknown_measures_and_engines_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    for flags, said in ((["--measures", "chat-9"], "chat-9"), (["--engines", "vlm"], "'vlm'")):
        with pytest.raises(SystemExit, match="1"):
            compare.main(["--model", model, *flags])
        assert said in capsys.readouterr().err


def test_every_default_engine_can_be_made() -> None:
    options = parser().parse_args([])
    setting = Setting(Path("m.gguf"), Path("/peers"), threads=2, vocab=100, repeats=1, install=False)
    names = options.engines.split(",")
    assert {name for name in names if engines.make(name, setting).has_server} >= set(options.served.split(","))
