"""From settings to a ``Serving``: the engine, its text side, and how long each phase of the start took."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from forno.config import EngineConfig, ServerConfig
from forno.engine.async_engine import AsyncEngine
from forno.engine.build import Built, attributed, build_engine
from forno.engine.defaults import sampling_defaults
from forno.errors import ConfigError
from forno.server.engine_metrics import EngineMetrics
from forno.server.goodput import Goodput, parse_slo
from forno.server.serving import Serving
from forno.text import ConstraintCompiler, load_chat_template, read_template


def open_serving(config: EngineConfig, server: ServerConfig) -> tuple[Serving, Built]:
    """Build everything; the engine's thread is not started yet. Raises ``ModelError`` or ``ConfigError``."""
    built = attributed(build_engine(config))
    return serving_of(built, config, server), built


def serving_of(built: Built, config: EngineConfig, server: ServerConfig) -> Serving:
    """The text side and the metrics around an engine. Raises ``ConfigError`` for a bad chat template or ``--slo``."""
    engine = AsyncEngine(built.engine)
    template = load_chat_template(built.checkpoint, built.tokenizer, read_template(config.model.chat_template))
    metrics = EngineMetrics(
        engine, built.name, server.metrics_prefix, Goodput(parse_slo(server.slo)), built.phases, built.attribution
    )
    serving = Serving(
        engine=engine,
        tokenizer=built.tokenizer,
        template=template,
        constraints=ConstraintCompiler(built.tokenizer),
        metrics=metrics,
        attribution=built.attribution,
        model=built.name,
        created=int(time.time()),
        config=server,
        sampling_defaults=sampling_defaults(built.checkpoint.generation_config),
        scheduling_policy=config.scheduler.scheduling_policy,
    )
    return _with_spans(serving)


def _with_spans(serving: Serving) -> Serving:
    """``serving``, whose finished requests are sent to the endpoint that its settings name, if they do."""
    endpoint, recorder = serving.config.otlp_traces_endpoint, serving.engine.recorder
    if not endpoint:
        return serving
    if not recorder.recording:
        raise ConfigError("--otlp-traces-endpoint sends what is recorded: leave --no-record out")
    from forno.server.observe import explain_record
    from forno.server.spans import SpanSender  # it imports OpenTelemetry

    explained = partial(explain_record, serving)
    return replace(serving, spans=SpanSender(endpoint, serving.model, explained, serving.engine.clock, serving.metrics.spans))
