"""From settings to a ``Serving``: the engine, its text side, and how long each phase of the start took."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forno.config import CacheConfig, CpuConfig, EngineConfig, ModelConfig, SchedulerConfig, ServerConfig
from forno.engine.async_engine import AsyncEngine
from forno.engine.build import Built, build_engine
from forno.errors import ConfigError, RequestError
from forno.options import from_args
from forno.request import SamplingParams
from forno.server.engine_metrics import EngineMetrics
from forno.server.serving import Serving
from forno.text import ConstraintCompiler, load_chat_template

ENGINE_OPTIONS = (ModelConfig, CpuConfig, CacheConfig, SchedulerConfig)
SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """``EngineConfig`` of parsed options."""
    return EngineConfig(
        model=from_args(ModelConfig, args),
        cpu=from_args(CpuConfig, args),
        cache=from_args(CacheConfig, args),
        scheduler=from_args(SchedulerConfig, args),
    )


def open_serving(config: EngineConfig, server: ServerConfig) -> tuple[Serving, Built]:
    """Build everything; the engine's thread is not started yet. Raises ``ModelError`` or ``ConfigError``."""
    built = build_engine(config)
    engine = AsyncEngine(built.engine)
    template = load_chat_template(built.checkpoint, built.tokenizer, read_template(config.model.chat_template))
    serving = Serving(
        engine=engine,
        tokenizer=built.tokenizer,
        template=template,
        constraints=ConstraintCompiler(built.tokenizer),
        metrics=EngineMetrics(engine, built.name, server.metrics_prefix),
        model=built.name,
        created=int(time.time()),
        config=server,
        sampling_defaults=sampling_defaults(built.checkpoint.generation_config),
        scheduling_policy=config.scheduler.scheduling_policy,
    )
    return serving, built


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The model's own sampling defaults; values that make no sense are left to forno's."""
    found = {k: generation_config[k] for k in SAMPLING_DEFAULTS if _makes_sense(k, generation_config.get(k))}
    if generation_config.get("do_sample") is False:
        found["temperature"] = 0.0
    return found


def _makes_sense(name: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if name == "top_k" else (int, float)):
        return False
    try:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    except RequestError:
        return False
    return True


def read_template(path: str) -> str | None:
    """The text of ``--chat-template``, None if it was not given."""
    if not path:
        return None
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --chat-template {path}: {error}") from error
