"""The ceilings' arithmetic, and that every case runs on a tiny model."""

from __future__ import annotations

import json

import pytest

from benchmarks import engine
from benchmarks.engine import Bench, cases, config_for
from forno.program.ceiling import Ceiling
from tests.helpers.runners import Model


def test_every_case_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PREFILL", 24), ("GENERATE", 4), ("CONTEXT", 10), ("STEPS", 2), ("MARGIN", 2)):
        monkeypatch.setattr(engine, name, value)
    bench = Bench(Model.tiny(format="q8_0", kv="bf16").runner())
    limits = Ceiling(1e12, 1e12, 1e12, 1e10, 1e10)
    for case in cases([1, 3]):
        measured = case.measure(bench)
        assert measured.seconds > 0, case.name
        kinds = engine.op_table(bench.runner.program, case.shape, [measured, measured], limits)
        assert bool(kinds) == (case.name != "generate-128")
        assert not kinds or kinds["down"]["us"] >= 0 < kinds["down"]["limit_us"]
    assert bench.runner.executor.num_requests == 0


def test_the_cache_holds_the_largest_batch() -> None:
    config = config_for([1, 64])
    assert config.cache.num_blocks_override == 64 * engine.blocks_for(engine.CONTEXT, config.cache.block_size)
    assert config_for([]).cache.num_blocks_override == engine.blocks_for(engine.PREFILL, config.cache.block_size)


def test_the_report_shows_the_share_of_both_ceilings_and_of_each_op() -> None:
    result = {
        "tok_s": {"prefill-512": 600.0, "decode-32": 90.0},
        "ceiling": {"prefill-512": 1000.0, "decode-32": 200.0},
        "by_op": {"prefill-512": 800.0, "decode-32": 100.0},
        "spread": {"prefill-512": 0.05, "decode-32": 0.01},
        "ops": {
            "decode-32": {},
            "prefill-512": {"down": {"ops": 2, "us": 30.0, "limit_us": 15.0}, "o": {"ops": 2, "us": 10.0, "limit_us": 9.0}},
        },
    }
    lines = [line.split() for line in engine.report(json.loads(json.dumps(result))).splitlines()]
    assert lines[1] == ["prefill-512", "600", "1000", "800", "60%", "75%", "5%"]
    assert lines[2] == ["decode-32", "90", "200", "100", "45%", "90%", "60%", "1%"], "with its target"
    assert ["down", "2", "30.0", "75%", "15.0", "50%"] in lines
    assert ["all", "4", "40.0", "100%", "24.0", "60%"] in lines
