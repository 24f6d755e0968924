"""The costs of an arm's program: built as ``forno serve`` would build it from the same options, without any weights read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from forno.bench.ablate.facts import BATCH, CONTEXT, PROMPT, Facts, Step
from forno.config import ENGINE_PARTS, EngineConfig, ServerConfig
from forno.engine.build import engine_config_of
from forno.errors import ConfigError
from forno.loader.open import open_checkpoint
from forno.loader.sources import resolve
from forno.options import Parser, add_options
from forno.program import ops
from forno.program.program import Program
from forno.program.shape import StepShape
from forno.runner import setup


class _Parser(Parser):
    """Refuses options as ``forno serve`` does, with an exception."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"--serve: {message}")


def config_of(model: str, flags: Sequence[str]) -> EngineConfig:
    """The configuration that ``forno serve --model MODEL FLAGS`` starts with. Raises ``ConfigError`` for what it refuses."""
    parser = _Parser(prog="forno serve", add_help=False)
    add_options(parser, ServerConfig, *ENGINE_PARTS.values())
    return engine_config_of(parser.parse_args(["--model", model, *flags]))


def facts_of(model: str, flags: Sequence[str] = ()) -> Facts:
    """Raises ``ModelError`` or ``ConfigError`` for what no server could be started with."""
    config = config_of(model, flags)
    program = setup.build(open_checkpoint(resolve(config.model.model)), config)
    matrices = {w.format for w in program.weights.values() if len(w.shape) > 1}
    return Facts(
        weight_bytes=program.weight_bytes,
        kv_bytes_per_token=program.kv_bytes_per_token,
        num_ops=sum(not isinstance(op, ops.Split) for op in program.ops),
        prompt=_step(program, StepShape.prefill(PROMPT)),
        decode=_step(program, StepShape.decode(BATCH, CONTEXT)),
        budget=config.scheduler.max_num_batched_tokens,
        max_model_len=config.model.max_model_len or program.max_positions,
        formats=tuple(sorted(matrices)),
    )


def _step(program: Program, shape: StepShape) -> Step:
    cost = program.cost(shape)
    return Step(
        flops=cost.flops,
        weight_bytes=cost.weight_bytes,
        kv_bytes=cost.kv_bytes,
        activation_bytes=cost.activation_bytes,
    )
