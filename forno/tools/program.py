"""``forno program``: a model's program before and after fusion, with what each op costs in one step."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from forno.errors import ConfigError
from forno.loader.files import read_json_object
from forno.models import build_program
from forno.program.formats import FORMATS
from forno.program.passes import PASSES, apply, default_passes, pass_names
from forno.program.printing import describe, format_counts, format_program, format_totals, quantity
from forno.program.program import Program
from forno.program.shape import Span, StepShape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    passes = "; ".join(f"{p.name}: {p.help}" for p in PASSES)
    parser.add_argument(
        "model", help="A config.json or a directory with one (no weights needed), a GGUF file, or a model name."
    )
    parser.add_argument("--passes", metavar="NAMES", help=f"Comma-separated passes to run (default: all). {passes}.")
    parser.add_argument("--disable-passes", metavar="NAMES", default="", help="Comma-separated passes to leave out.")
    parser.add_argument(
        "--batch", type=int, metavar="B", help="Sequences that decode one token (default: 1 without --prefill)."
    )
    parser.add_argument("--context", type=int, default=512, metavar="C", help="Tokens cached per sequence (default: 512).")
    parser.add_argument("--prefill", type=int, default=0, metavar="N", help="Add one prompt of N tokens to the step.")
    parser.add_argument("--format", choices=sorted(FORMATS), help="Hold matrices in this format instead of the file's own.")
    parser.add_argument(
        "--kv-cache-dtype", choices=("bf16", "int8", "float32"), default="bf16", help="Type of cached K and V (default: bf16)."
    )
    parser.add_argument(
        "--attention", choices=("tiled", "materialized"), default="tiled", help="Where scores live (default: tiled)."
    )
    parser.add_argument(
        "--time",
        action="store_true",
        help="Say instead how long the step should take here, by kind of op (measures the machine).",
    )
    parser.add_argument("--json", action="store_true", help="Print every op, its shapes and its cost as JSON.")


def run(args: argparse.Namespace) -> int:
    """Print the report to stdout. Returns the exit status; a model or option it cannot honour raises ``FornoError``."""
    shape = step_shape(args.batch, args.context, args.prefill)
    disable = _disabled(args.passes, args.disable_passes)
    name, program = load_program(args.model)
    if args.format:
        program = program.with_formats(dict.fromkeys(program.weights, args.format))
    program = program.with_kv_dtype(args.kv_cache_dtype)
    if args.attention == "materialized":
        program = program.with_materialized_attention()
    before, after = apply(program, disable=default_passes()), apply(program, disable=disable)
    if args.time:
        from forno.tools import step_time

        found = step_time.predict(after, shape)
        print(json.dumps(found) if args.json else f"{name}, one step: {_describe_shape(shape)}\n\n{step_time.as_table(found)}")
        return 0
    print(_json(name, before, after, shape) if args.json else _text(name, before, after, shape))
    return 0


def step_shape(batch: int | None, context: int, prefill: int) -> StepShape:
    """``batch`` decoding sequences after ``context`` tokens each, and one prompt of ``prefill`` tokens.

    ``batch`` None means 1 without a prompt and 0 with one. Raises ``ConfigError`` for an empty or negative step.
    """
    batch = (0 if prefill else 1) if batch is None else batch
    for option, value in (("--batch", batch), ("--context", context), ("--prefill", prefill)):
        if value < 0:
            raise ConfigError(f"{option} must not be negative, got {value}")
    if batch + prefill == 0:
        raise ConfigError("a step needs a sequence: give --batch or --prefill")
    spans = (Span(context, 1),) * batch + ((Span(0, prefill),) if prefill else ())
    return StepShape(spans, len(spans))


def load_program(model: str) -> tuple[str, Program]:
    """A name for people and the program, from a config alone where there is one, else from a checkpoint's headers."""
    path = Path(model)
    config = path / "config.json" if path.is_dir() else path
    if config.suffix == ".json" and config.is_file():
        return config.parent.name if config.name == "config.json" else config.stem, build_program(read_json_object(config))
    from forno.loader.open import open_checkpoint
    from forno.loader.sources import resolve

    checkpoint = open_checkpoint(resolve(model))
    program = build_program(checkpoint.config)
    return checkpoint.name, program.with_formats({n: t.format for n, t in checkpoint.tensors.items()})


def _disabled(passes: str | None, disable: str) -> frozenset[str]:
    """Passes to leave out: those in ``disable``, and those not in ``passes`` if given."""
    kept = frozenset(default_passes()) if passes is None else pass_names(passes)
    return (frozenset(default_passes()) - kept) | pass_names(disable)


def _text(name: str, before: Program, after: Program, shape: StepShape) -> str:
    lines = [
        f"{name}: {before.name}, {quantity(_parameters(before.weights.values()))} parameters, "
        f"{quantity(before.weight_bytes)}B of weights, {before.kv_bytes_per_token:,} B of KV cache per token",
        f"One step: {_describe_shape(shape)}",
    ]
    fused = [p for p in after.passes if p in default_passes()]
    for title, program in (("Before fusion", before), (f"After fusion ({', '.join(fused) or 'no pass'})", after)):
        cost = format_totals(program.cost(shape))
        lines += ["", title, format_counts(program), cost, "", format_program(program, shape)]
    return "\n".join([*lines, "", _saving(before, after, shape)])


def _saving(before: Program, after: Program, shape: StepShape) -> str:
    old, new = before.cost(shape), after.cost(shape)
    saved = old.activation_bytes - new.activation_bytes
    share = saved / old.activation_bytes if old.activation_bytes else 0.0
    less = 1.0 - new.flops / old.flops
    work = f"{100 * less:.2g}% less work" if less > 5e-4 else "the work is the same"
    return (
        f"Fusion: {len(before.ops)} ops become {len(after.ops)}; {work}, activations move "
        f"{quantity(saved)}B less ({share:.0%}), all bytes {1 - new.bytes / old.bytes:.1%} less."
    )


def _parameters(weights: Iterable[Any]) -> float:
    return float(sum(w.elements for w in weights))


def _describe_shape(shape: StepShape) -> str:
    decodes = [s for s in shape.spans if s.num_tokens == 1 and s.start]
    prompts = [s for s in shape.spans if s not in decodes]
    parts = []
    if decodes:
        plural = "s" if len(decodes) > 1 else ""
        parts.append(f"{len(decodes)} sequence{plural} decoding after {decodes[0].start} tokens")
    parts += [f"a prompt of {s.num_tokens} tokens" for s in prompts]
    return f"{' and '.join(parts)} ({shape.rows} rows, {shape.outputs} outputs)"


def _json(name: str, before: Program, after: Program, shape: StepShape) -> str:
    return json.dumps(
        {
            "model": name,
            "architecture": before.name,
            "parameters": _parameters(before.weights.values()),
            "weight_bytes": before.weight_bytes,
            "kv_bytes_per_token": before.kv_bytes_per_token,
            "step": {"spans": [[s.start, s.num_tokens] for s in shape.spans], "outputs": shape.outputs},
            "before": describe(before, shape),
            "after": describe(after, shape),
        }
    )
