"""The ceilings' arithmetic, and that every case runs on a tiny model."""

from __future__ import annotations

import json

import pytest

from benchmarks import engine
from benchmarks.engine import Bench, Ceiling, cases, config_for
from forno.program.shape import StepShape
from tests.helpers.runners import Model


def test_the_roofline_is_arithmetic_or_bytes_whichever_is_longer() -> None:
    program, shape = Model.tiny(format="q4_1", kv="bf16").program, StepShape.decode(4, 30)
    cost = program.cost(shape)
    slow_memory = Ceiling(1e30, 1e30, 1e30, 1e6)
    assert slow_memory.seconds(program, shape) == pytest.approx((cost.weight_bytes + cost.kv_bytes) / 1e6)
    slow_units = Ceiling(1e6, 1e6, 1e6, 1e30)
    assert slow_units.seconds(program, shape) == pytest.approx(cost.flops / 1e6)


def test_a_ceiling_is_what_was_reached_once() -> None:
    assert Ceiling(1, 5, 2, 7) | Ceiling(3, 4, 2, 8) == Ceiling(3, 5, 2, 8)


def test_every_case_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PREFILL", 24), ("GENERATE", 4), ("CONTEXT", 10), ("STEPS", 2), ("MARGIN", 2)):
        monkeypatch.setattr(engine, name, value)
    bench = Bench(Model.tiny(format="q8_0", kv="bf16").runner())
    for case in cases([1, 3]):
        assert case.measure(bench) > 0, case.name
    assert bench.runner.executor.num_requests == 0


def test_the_cache_holds_the_largest_batch() -> None:
    config = config_for([1, 64])
    assert config.cache.num_blocks_override == 64 * engine.blocks_for(engine.CONTEXT, config.cache.block_size)
    assert config_for([]).cache.num_blocks_override == engine.blocks_for(engine.PREFILL, config.cache.block_size)


def test_the_report_shows_the_share_of_the_ceiling() -> None:
    result = {"tok_s": {"prefill-512": 600.0}, "ceiling": {"prefill-512": 1000.0}, "spread": {"prefill-512": 0.05}}
    assert engine.report(json.loads(json.dumps(result))).splitlines()[1].split() == ["prefill-512", "1000", "600", "60%", "5%"]
