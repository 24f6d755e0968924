"""Fusion passes: pure functions from Program to Program, by name and in order, each of which can be switched off.

Every pass leaves a program that computes the same bits on the reference executor, does no more work and moves no more
bytes (but for ``early_gather``, which copies rows twice where every row has an output). Any subset in any order is correct;
the order here is the one in which each finds the most to fuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from forno.errors import ConfigError
from forno.program.passes.fold import qkv_prepare, residual, sample_head
from forno.program.passes.gather import early_gather
from forno.program.passes.lowering import activation_types
from forno.program.passes.merge import gate_up, qkv
from forno.program.passes.quantize import activation_quantize, norm_quantize
from forno.program.program import Program

__all__ = ["PASSES", "Pass", "activation_types", "apply", "default_passes", "pass_names"]


@dataclass(frozen=True, slots=True)
class Pass:
    name: str
    run: Callable[[Program], Program]
    help: str


PASSES = (
    Pass("qkv", qkv, "q, k and v of a layer in one linear, which reads its input once"),
    Pass("gate_up", gate_up, "gate, up and silu * up in one linear, so that neither half is ever stored"),
    Pass("qkv_prepare", qkv_prepare, "q/k norm, rope and the cache write in one pass over the q, k and v columns"),
    Pass("norm_quantize", norm_quantize, "norms write the type that the linear behind them reads"),
    Pass("activation_quantize", activation_quantize, "silu * up and attention write the type that the next linear reads"),
    Pass("residual", residual, "the residual is added where a linear's result is still in registers"),
    Pass("early_gather", early_gather, "rows whose logits nobody needs end at the last attention"),
    Pass("sample_head", sample_head, "logits are sampled in slices and never exist for all rows at once"),
)


def default_passes() -> tuple[str, ...]:
    """Names of all optional passes, in the order in which they run."""
    return tuple(p.name for p in PASSES)


def pass_names(text: str) -> frozenset[str]:
    """The passes in a comma-separated list. Raises ``ConfigError`` for one that does not exist."""
    names = frozenset(name.strip() for name in text.split(",")) - {""}
    if unknown := names - set(default_passes()):
        raise ConfigError(f"unknown pass {', '.join(sorted(unknown))}; passes are {', '.join(default_passes())}")
    return names


def apply(program: Program, disable: Iterable[str] = ()) -> Program:
    """Lower ``program`` for the formats its weights are held in, then fuse. Call ``with_formats`` before.

    Passes named in ``disable`` (``pass_names`` reads a user's list) are left out.
    """
    off = frozenset(disable)
    assert off <= set(default_passes()), f"unknown passes among {sorted(off)}"
    program = activation_types(program)
    for step in PASSES:
        if step.name not in off:
            program = step.run(program)
    program.check_integrity()  # once: after every pass it is a third of what a start does here; the tests do that
    return program
