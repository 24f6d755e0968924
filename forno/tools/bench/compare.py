"""``forno bench compare A B``: two result files, and which differences are larger than the noise."""

from __future__ import annotations

import argparse
import sys

import msgspec

from forno.bench.compare import compare
from forno.bench.compare_text import as_text
from forno.bench.numbers import short, shown
from forno.bench.read import read_result

REGRESSION = 3
"""Exit status of ``--fail-on-regression``; 1 is an error, 2 wrong usage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("a", help="Result file to compare with: the older one, or the baseline.")
    parser.add_argument("b", help="Result file that is judged.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object instead of tables.")
    parser.add_argument(
        "--fail-on-regression",
        type=_percent,
        metavar="PCT",
        help=f"Exit with status {REGRESSION} if a metric of b is worse by more than PCT percent and by more than the noise, "
        "or a run of b is not valid.",
    )


def _percent(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no percentage: write 0 or more")
    return value


def run(args: argparse.Namespace) -> int:
    """Print the comparison; returns the exit status."""
    found = compare(read_result(args.a), read_result(args.b), (args.a, args.b))
    print(msgspec.json.encode(found).decode() if args.json else as_text(found))
    if args.fail_on_regression is None:
        return 0
    worse = found.regressions(args.fail_on_regression)
    for load, row in worse:
        print(f"regression at {short(load)}: {row.title} {shown(row.a)} to {shown(row.b)}", file=sys.stderr)
    invalid = [pair.load for pair in found.pairs if pair.invalid[1]]
    for load in invalid:
        print(f"not valid at {short(load)}: no regression can be ruled out", file=sys.stderr)
    return REGRESSION if worse or invalid else 0
