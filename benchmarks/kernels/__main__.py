"""Every kernel at the shapes of two models, as a fraction of what this machine allows.

    python -m benchmarks.kernels [--kernels linear,attention] [--codecs q4_1,bf16] [--isa avx2] [--rows 1,64] [--quick]

Prints the ceilings first (read again around every group, since a shared machine's speed drifts), then each kernel's time,
rate and fraction of its limit, a line per class next to its target, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.kernels import attention, report, steps
from benchmarks.kernels.shapes import MODELS
from benchmarks.kernels.steps import KERNELS, Measurement
from benchmarks.measure import Contention, machine
from forno import _native
from forno.kernels.cpu import ceilings, cpuinfo
from forno.program.ceiling import DEFINITION
from forno.program.formats import FORMATS

ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 512)
QUICK_ROWS, QUICK_CODECS = (1, 8, 64), ("q4_1", "q8_0", "w8a8")
ALL_KERNELS = (*KERNELS, "attention")
SECONDS, QUICK_SECONDS = 0.1, 0.04
"""Length of each measurement."""


def groups(options: argparse.Namespace) -> Iterator[tuple[str, Iterable[Measurement]]]:
    """What is measured together, by title. Ops without weights in blocks are the same for every codec: the first has them."""
    wanted = set(options.kernels)
    common = wanted - {"linear", "embed", "attention"}
    place = (options.isa, options.threads)
    for model in MODELS:
        for codec in options.codecs if wanted - {"attention"} else ():
            chosen = wanted if codec == options.codecs[0] else wanted - common
            found = steps.measure(model, codec, options.rows, *place, options.seconds)
            yield f"{model}, {codec}", (m for m in found if m.kernel in chosen)
        if common:
            found = steps.measure_unfused(model, options.rows, *place, options.seconds)
            yield f"{model}, ops that fusion removes", (m for m in found if m.kernel in common)
        for kv in attention.KV_DTYPES if "attention" in wanted else ():
            if options.quick and kv == "float32":
                continue
            limits = ((1, 64), (512,)) if options.quick else (attention.BATCHES, attention.CONTEXTS)
            yield f"{model}, attention, {kv} cache", attention.measure(model, kv, *place, options.seconds, *limits)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print group after group; returns the report."""
    contention, measured = Contention(), []
    ceiling = ceilings.measure(options.threads, options.isa)
    _print(options, f"ceilings on {options.threads} threads ({options.isa}): {ceiling}\n{DEFINITION}")
    for title, group in groups(options):
        with contention.watched():
            found = list(group)
        if found:
            _print(options, f"\n{title}\n{report.detail(found)}")
        measured += found
    last = ceilings.measure(options.threads, options.isa)
    _print(options, f"\n{report.summary(measured)}\nceilings at the end: {last}; others used {contention.mean:.2f} cores")
    return {
        "benchmark": "kernels",
        "isa": options.isa,
        "machine": machine() | {"others": contention.mean},
        "ceilings": [{name: float(f"{rate:.4g}") for name, rate in asdict(c).items()} for c in (ceiling, last)],
        "measured": report.as_json(measured),
    }


def _print(options: argparse.Namespace, text: str) -> None:
    if not options.json:
        print(text, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.kernels", description="Kernels as fractions of what this machine allows.")
    parser.add_argument("--kernels", type=_names(ALL_KERNELS), default=ALL_KERNELS, help=f"of {', '.join(ALL_KERNELS)}")
    parser.add_argument("--codecs", type=_names(tuple(FORMATS)), help=f"of {', '.join(FORMATS)}; default: all")
    parser.add_argument("--isa", default=_native.available_isas()[0], choices=_native.available_isas())
    parser.add_argument("--threads", type=int, default=cpuinfo.usable_threads())
    parser.add_argument("--rows", type=_numbers, help="numbers of rows, comma-separated")
    parser.add_argument("--quick", action="store_true", help="few codecs and shapes, 15 s")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    options = parser.parse_args(arguments)
    options.codecs = options.codecs or (QUICK_CODECS if options.quick else tuple(FORMATS))
    options.rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    options.seconds = QUICK_SECONDS if options.quick else SECONDS
    return options


def _names(known: Sequence[str]) -> Any:
    def names(text: str) -> tuple[str, ...]:
        chosen = tuple(name.strip() for name in text.split(",") if name.strip())
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
        return chosen

    return names


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("rows are at least 1")
    return numbers


def main(arguments: Sequence[str] | None = None) -> None:
    print(json.dumps(run(parse(arguments))))


if __name__ == "__main__":
    main()
