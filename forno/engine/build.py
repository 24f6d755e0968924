"""From an ``EngineConfig`` to a running engine: find the model, open it, pack it, and put the parts together, each timed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forno.cache import ContiguousCache, KvCache
from forno.config import ENGINE_PARTS, CacheConfig, EngineConfig, ModelConfig
from forno.engine.engine import Engine
from forno.engine.output import OutputProcessor
from forno.observe.recorder import Recorder
from forno.observe.silent import Silent
from forno.options import from_args, from_options, refuse_unknown
from forno.phases import PhaseClock
from forno.request import Request, Runner
from forno.scheduler import Scheduler

if TYPE_CHECKING:
    from forno.loader.checkpoint import Checkpoint
    from forno.observe.attribution import Attribution
    from forno.runner.cpu import CpuRunner
    from forno.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Built:
    """An engine and the parts that others need too."""

    engine: Engine
    runner: CpuRunner
    tokenizer: Tokenizer
    checkpoint: Checkpoint
    """Without its data: the files are no longer mapped."""
    phases: tuple[tuple[str, float], ...]
    """What the start spent its time on: names and seconds, in the order they ended. Some ran at the same time."""
    name: str
    """See ``served_name``."""
    attribution: Attribution | None = None
    """What the engine's steps wait for; see ``attributed``."""


class Loading:
    """A model on its way into memory: opened here, packed by native threads while Python does something else."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises ``ModelError``; what else goes wrong is raised by ``finish``."""
        from forno.loader.open import open_checkpoint
        from forno.loader.sources import resolve
        from forno.runner.cpu import CpuRunner

        self.config, self.phases = config, PhaseClock()
        with self.phases.phase("open"):
            self._checkpoint = open_checkpoint(resolve(config.model.model))
        worker = ThreadPoolExecutor(1, thread_name_prefix="forno-load")
        self._runner = worker.submit(CpuRunner.from_checkpoint, self._checkpoint, config, self.phases)
        worker.shutdown(wait=False)

    def finish(self, clock: Callable[[], float] = time.monotonic) -> Built:
        """An engine for the model, once it is packed. Call it once, and ``runner.prefault`` when nothing is left to start.

        Raises ``ModelError`` or ``ConfigError``.
        """
        from forno.text import load_tokenizer

        with self.phases.phase("tokenizer"):
            tokenizer = load_tokenizer(self._checkpoint)
        runner = self._runner.result()
        checkpoint = self._checkpoint = self._checkpoint.without_data()
        engine = assemble(runner, tokenizer, self.config, clock)
        name = served_name(self.config.model, checkpoint)
        return Built(engine, runner, tokenizer, checkpoint, tuple(self.phases.phases), name)


def build_engine(config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> Built:
    """Load the model and make an engine for it. Raises ``ModelError`` or ``ConfigError``."""
    built = Loading(config).finish(clock)
    built.runner.prefault(config.cache.kv_cache_prefault)
    return built


def attributed(built: Built) -> Built:
    """``built``, its recorded steps held against what its program costs and its machine allows; as it is without a recorder.

    The machine is measured here the first time, so call it when nothing else runs.
    """
    from forno.observe.attribution import Attribution
    from forno.observe.roofline import Roofline
    from forno.observe.step_time import EFFICIENCIES
    from forno.program.cost_model import CostModel

    if not built.engine.recorder.recording:
        return built
    runner, clock = built.runner, PhaseClock()
    with clock.phase("ceilings"):
        roofline = Roofline(CostModel(runner.executed()), runner.ceiling(), runner.threads, EFFICIENCIES[runner.isa])
    attribution = Attribution(roofline, built.engine.recorder.steps)
    return replace(built, attribution=attribution, phases=(*built.phases, *clock.phases))


def served_name(config: ModelConfig, checkpoint: Checkpoint) -> str:
    """What clients call the model: the option, else the built-in short name it was asked for by, else its own."""
    from forno.loader.sources import BUILTIN_MODELS

    short = config.model.strip().lower()
    return config.served_model_name or (short if short in BUILTIN_MODELS else checkpoint.name)


def assemble(runner: Runner, tokenizer: Any, config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> Engine:
    """An engine on ``runner``, with a cache of the runner's blocks."""
    from forno.text import IncrementalDetokenizer, StopStrings

    def detokenizer(request: Request) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(tokenizer, request.prompt, skip_special_tokens=True)

    recorder = Recorder(clock) if config.observe.record else Silent()
    cache = kv_cache(config.cache, runner)
    scheduler = Scheduler(config.scheduler, cache, runner.max_model_len, clock, recorder, config.speculative)
    return Engine(runner, scheduler, OutputProcessor(detokenizer, StopStrings), recorder)


def kv_cache(config: CacheConfig, runner: Runner) -> KvCache:
    """Block tables over the runner's blocks."""
    num_blocks, size = runner.num_blocks, runner.block_size
    if config.kv_reservation == "paged":
        return KvCache(num_blocks, size, config.enable_prefix_caching, config.explain_salts)
    as_asked = config.kv_reservation == "contiguous-as-asked"
    return ContiguousCache(num_blocks, size, runner.max_model_len, as_asked)


def engine_config(**options: Any) -> EngineConfig:
    """Options by field name, whichever config they belong to. Raises ``ConfigError`` naming the first unknown one."""
    left = dict(options)
    config = EngineConfig(**{name: from_options(part, left) for name, part in ENGINE_PARTS.items()})
    refuse_unknown(left, *ENGINE_PARTS.values())
    return config


def engine_config_of(args: argparse.Namespace) -> EngineConfig:
    """The same from parsed command-line options."""
    return EngineConfig(**{name: from_args(part, args) for name, part in ENGINE_PARTS.items()})
