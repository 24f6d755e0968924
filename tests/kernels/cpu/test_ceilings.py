"""Measured ceilings, and the file they are remembered in, whole, broken or of another machine."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forno.kernels.cpu import ceilings
from forno.kernels.cpu.cpuinfo import Cache
from forno.program.ceiling import Ceiling

MIB = 1 << 20
RATES = Ceiling(5.0, 4.0, 3.0, 2.0, 1.0)


def test_every_instruction_set_has_ceilings() -> None:
    """Also where a unit is missing."""
    ceiling = ceilings.measure(1, "portable", 0.001)
    assert min(ceiling.int8, ceiling.bf16, ceiling.fp32, ceiling.dram, ceiling.l3) > 0
    assert "Tops/s" in str(ceiling)


def test_what_a_machine_lacks_is_replaced() -> None:
    found = {"int8": None, "bf16": None, "fp32": 7.0, "dram_read": 3.0, "l3_read": None}
    assert ceilings.as_ceiling(found) == Ceiling(7.0, 7.0, 7.0, 3.0, 3.0)


def test_a_quick_measurement_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "QUICK_SECONDS", dict.fromkeys(ceilings.QUICK_SECONDS, 0.001))
    monkeypatch.setattr(ceilings, "UNDISTURBED", 0.0)
    first = ceilings.known(1, "portable", tmp_path / "new")
    (file,) = (tmp_path / "new").iterdir()
    monkeypatch.setattr(ceilings, "_measure", None)
    assert ceilings.known(1, "portable", tmp_path / "new") == first
    assert json.loads(file.read_text())["of"]["isa"] == "portable"


def test_a_disturbed_measurement_is_not_remembered(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.unlink()
    monkeypatch.setattr(ceilings, "UNDISTURBED", math.inf)
    assert ceilings.known(2, "portable", file.parent) == MEASURED
    assert not list(file.parent.iterdir())


def test_what_was_measured_otherwise_is_answered(tmp_path: Path) -> None:
    ceilings.remember(3, "portable", RATES, tmp_path)
    assert ceilings.known(3, "portable", tmp_path) == RATES


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A remembered ceiling; measuring gives another."""
    ceilings.remember(2, "portable", RATES, tmp_path)
    monkeypatch.setattr(ceilings, "UNDISTURBED", 0.0)
    found = {"int8": 9.0, "bf16": 9.0, "fp32": 9.0, "dram_read": 9.0, "l3_read": 9.0}
    monkeypatch.setattr(ceilings, "_measure", lambda *_: found)
    (file,) = tmp_path.iterdir()
    return file


MEASURED = Ceiling(9.0, 9.0, 9.0, 9.0, 9.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        "[" * 100_000,
        '{"of": {}, "rates": {}}',
        "\x00\x01",
    ],
)
def test_a_broken_file_is_measured_again_and_replaced(file: Path, text: str) -> None:
    file.write_text(text)
    assert ceilings.known(2, "portable", file.parent) == MEASURED
    assert json.loads(file.read_text())["rates"]["dram"] == 9.0


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan"), "fast", None, True, [1.0], 10**400])
def test_a_rate_that_is_none_is_measured_again(file: Path, rate: object) -> None:
    content = json.loads(file.read_text())
    content["rates"]["bf16"] = rate
    file.write_text(json.dumps(content))
    assert ceilings.known(2, "portable", file.parent) == MEASURED


@pytest.mark.parametrize("field", ["chip", "threads", "isa", "forno", "kernel"])
def test_another_machine_is_measured_again(file: Path, field: str) -> None:
    content = json.loads(file.read_text())
    content["of"][field] = "other"
    file.write_text(json.dumps(content))
    assert ceilings.known(2, "portable", file.parent) == MEASURED


@given(st.binary(max_size=200))
def test_no_bytes_crash_it(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("x") / "ceilings.json"
    file.write_bytes(data)
    assert ceilings._read(file, {}) is None


def test_a_directory_that_cannot_be_written_does_no_harm(file: Path) -> None:
    blocked = file.parent / "file"
    blocked.write_text("")
    assert ceilings.known(2, "portable", blocked / "below") == MEASURED


def test_working_sets_fit_one_cache_and_no_cache() -> None:
    caches = (Cache(1, "Data", MIB // 32, 1), Cache(2, "Unified", MIB, 1), Cache(3, "Unified", 32 * MIB, 8))
    near, far = ceilings.working_sets(8, caches, 64 << 30)
    assert (near, far) == (2 * MIB, 16 * MIB)
    near, far = ceilings.working_sets(32, caches, 64 << 30)  # four such chips' worth of threads, and so of caches
    assert (near, far) == (2 * MIB, 16 * MIB)
    assert ceilings.working_sets(2, caches[:2], 64 << 30) == (None, 64 * MIB)
    assert ceilings.working_sets(2, caches, 8 * MIB) == (8 * MIB, 2 * MIB)
