"""What recording costs: the arithmetic of pairs, and a run without a model."""

from __future__ import annotations

from benchmarks.recording import differences, measure
from forno.cache import KvCache
from forno.config import SchedulerConfig
from forno.engine.engine import Engine
from forno.observe.recorder import Recorder
from forno.scheduler import Scheduler
from tests.helpers.fake_runner import FakeRunner


def test_the_median_difference_and_its_interval() -> None:
    on, off = [float(10 + i) for i in range(101)], [10.0] * 101
    low, middle, high = differences(on, off)
    assert (low, middle, high) == (40.0, 50.0, 60.0)
    assert differences([2.0], [1.0]) == (1.0, 1.0, 1.0)


def test_both_kinds_of_steps_are_measured_and_everything_is_put_back() -> None:
    runner, recorder = FakeRunner(num_blocks=200), Recorder()
    scheduler = Scheduler(SchedulerConfig(), KvCache(200, runner.block_size), 800, recorder=recorder)
    engine = Engine(runner, scheduler, recorder=recorder)
    found = measure(engine, clients=3, steps=8)
    assert (found["clients"], found["pairs"]) == (3, 8)
    assert found["own_us"] > 0
    assert found["ratio_low"] <= found["ratio"] <= found["ratio_high"]
    assert engine.runner is runner
    assert engine.recorder is recorder
    assert not engine.has_work
