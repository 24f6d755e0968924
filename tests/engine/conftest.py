"""An engine on the fake runner with byte text, and an asynchronous one around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from forno.cache import KvCache
from forno.config import SchedulerConfig
from forno.engine.async_engine import AsyncEngine
from forno.engine.engine import Engine
from forno.engine.output import OutputProcessor
from forno.scheduler import Scheduler
from forno.text import StopStrings
from tests.helpers.fake_runner import FakeRunner
from tests.helpers.fake_text import ByteDetokenizer


def make_engine(runner: FakeRunner | None = None, **config) -> Engine:
    runner = runner or FakeRunner(num_blocks=256)
    cache = KvCache(runner.num_blocks, runner.block_size)
    scheduler = Scheduler(SchedulerConfig(**config), cache, runner.max_model_len)
    return Engine(runner, scheduler, OutputProcessor(lambda request: ByteDetokenizer(), StopStrings))


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., AsyncEngine]]:
    """Start asynchronous engines; they are stopped after the test, and must then hold no block."""
    started: list[AsyncEngine] = []

    def start(runner: FakeRunner | None = None, **config) -> AsyncEngine:
        engine = AsyncEngine(make_engine(runner, **config))
        engine.start()
        started.append(engine)
        return engine

    yield start
    for engine in started:
        failed = not engine.healthy
        await engine.drain(5.0)
        await engine.stop()
        if not failed:
            engine.engine.check_integrity()
            assert engine.engine.scheduler.cache.usage == 0.0
            assert not engine.engine.has_work
