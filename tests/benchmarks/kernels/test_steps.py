"""Ops are timed by kind in steps of any number of rows; the report holds them against the targets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.kernels import attention, report, shapes, steps
from benchmarks.kernels.__main__ import ALL_KERNELS, parse, run
from benchmarks.kernels.steps import LINEARS, UNFUSED, Measurement, kernel_of
from forno.program.formats import FORMATS
from tests.helpers.models import CONFIGS


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """One model of two layers, caches of which nothing is held, and steps of a prompt from 5 rows on."""
    wide = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    for key in list(shapes.MODELS):
        monkeypatch.delitem(shapes.MODELS, key)
    monkeypatch.setitem(shapes.MODELS, "tiny", {**CONFIGS["llama-tied-linear"], **wide})
    monkeypatch.setattr(shapes, "cold_bytes", lambda: 1 << 10)
    for module, name, value in (
        (steps, "LARGEST_BATCH", 4),
        (attention, "PROMPTS", (40,)),
        (attention, "SHARED", 128),
        (attention, "MAX_SPANS", 1),
    ):
        monkeypatch.setattr(module, name, value)


def test_a_codecs_steps_give_every_fused_kind() -> None:
    found = list(steps.measure("tiny", "q8_0", (1, 3, 40), "portable", 1, 0.001))
    assert {m.kind for m in found if m.rows == 3} == {*LINEARS, "embed", "rms_norm", "qkv_prepare", "gather_rows"}
    assert {m.kind for m in found if m.rows == 40} == {*LINEARS, "embed", "rms_norm", "qkv_prepare"} - {"head"}
    assert all(m.us > 0 and m.limit_us > 0 and m.rate > 0 for m in found if m.kind != "gather_rows")


def test_matrices_in_another_format_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shapes.MODELS, "tiny", {**CONFIGS["llama-tied-linear"], "intermediate_size": 256})
    found = list(steps.measure("tiny", "q4_k", (1,), "portable", 1, 0.001))
    assert {m.kind for m in found if m.kernel == "linear"} == {"down"}


def test_channels_are_measured_in_the_layers_linears() -> None:
    found = list(steps.measure("tiny", "w8a8", (1,), "portable", 1, 0.001))
    assert {m.kind for m in found if m.kernel == "linear"} == {*LINEARS} - {"head"}


def test_unfused_kinds() -> None:
    found = list(steps.measure_unfused("tiny", (2,), "portable", 1, 0.001))
    assert {m.kind for m in found} == set(UNFUSED)


def test_rows_of_which_a_step_is_too_slow_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "SLOWEST", 0.0)
    assert {m.rows for m in steps.measure("tiny", "f32", (1, 2, 3), "portable", 1, 0.001)} == {1}
    assert "2 rows and more left out" in capsys.readouterr().err


def test_attention_is_measured_in_every_case() -> None:
    found = list(attention.measure("tiny", "int8", "portable", 1, 0.001, (1, 32), (33,)))
    assert [(m.kind, m.rows) for m in found] == [
        ("decode 33", 1),
        ("decode 33", 32),
        ("prefill 40", 40),
        ("prefix apart", 32),
        ("prefix shared", 32),
    ]
    assert all(m.us > 0 and m.limit_us > 0 and m.kernel == "attention" for m in found)


def made() -> Iterator[Measurement]:
    base = Measurement("tiny", "q4_0", "linear", "qkv", 64, 10.0, 8.0, 1e9, "op/s")
    yield base
    yield replace(base, kind="down", us=40.0, limit_us=20.0)
    yield replace(base, rows=1, limit_us=9.0, unit="B/s")
    yield replace(base, codec="bf16", limit_us=5.0)
    yield replace(base, codec="bf16", kernel="attention", kind="decode 512", limit_us=7.0)
    yield replace(base, codec="-", kernel="norm", kind="rms_norm", limit_us=1.0)


def test_a_class_shows_the_least_and_the_median_next_to_its_target() -> None:
    lines = {line.split("  ")[0]: line.split() for line in report.summary(made()).splitlines()[1:]}
    assert lines["linear, M=64, blocks"][3:] == ["50%", "tiny", "q4_0", "down", "65%", "56%", "70%"]
    assert lines["linear, M=1, blocks"][-1] == "85%"
    assert lines["attention, decode B=64"][-1] == "80%"
    assert "linear, M=1, floats" not in lines
    (line,) = report.summary(replace(m, codec="w8a8") for m in made() if m.kernel == "linear" and m.rows == 1).splitlines()[1:]
    assert line.startswith("linear, M=1, channels")


def test_details_have_a_line_per_number_of_rows() -> None:
    lines = report.detail(list(made())[:3]).splitlines()
    assert lines[0].split() == ["rows", "qkv", "down"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "64"]
    assert "9" in lines[1]
    assert "90%" in lines[1]


def test_every_kind_belongs_to_a_kernel() -> None:
    assert kernel_of("gate|up") == "linear"
    assert kernel_of("attention") == ""
    assert all(kernel_of(name) for name in UNFUSED)


def test_options_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([]).codecs == tuple(FORMATS)
    quick = parse(["--quick", "--rows", "1,2"])
    assert (quick.codecs, quick.rows) == (("q4_1", "q8_0", "w8a8"), (1, 2))
    for wrong in (["--kernels", "linear,lineer"], ["--codecs", "q9"], ["--rows", "0"]):
        with pytest.raises(SystemExit):
            parse(wrong)
    assert "lineer" in capsys.readouterr().err


def test_the_whole_report(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse(["--quick", "--isa", "portable", "--threads", "1", "--codecs", "q4_1,bf16", "--rows", "1,40"])
    options.seconds = 0.001
    result = json.loads(json.dumps(run(options)))
    assert {m["kernel"] for m in result["measured"]} == set(ALL_KERNELS)
    norms = [m for m in result["measured"] if m["kind"] == "rms_norm"]
    assert {m["codec"] for m in norms} == {"q4_1"}, "what no codec changes is measured once"
    printed = capsys.readouterr().out
    assert printed.startswith("ceilings on 1 threads (portable): int8")
    assert "fraction of the limit" in printed
