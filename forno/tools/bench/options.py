"""The options of measuring. It knows argparse, and what the values may be, not what is done with them."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import msgspec

from forno import env
from forno.bench import slo
from forno.bench.arrivals import FORMS, PROCESSES
from forno.bench.client import Timeouts
from forno.bench.metrics import MAX_LAG_MS
from forno.bench.traces import RESERVED
from forno.tools.bench import knobs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = f"{parser.prog} [WORD] [options]"
    _server_options(parser.add_argument_group("server"))
    _load_options(parser.add_argument_group("load", "How much is asked; without any of these, 1, 8 and 32 clients in turn"))
    _extent_options(parser.add_argument_group("extent", "How much is measured, of each load"))
    knobs.add_options(parser)
    _slo_options(parser.add_argument_group("objectives"))
    _output_options(parser.add_argument_group("output"))


def _server_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--url", "--base-url", type=_text, default="http://127.0.0.1:8000", help="The server (default: http://127.0.0.1:8000).")
    add("--model", default="", help="Its name for the model (default: the only one that /v1/models lists).")
    add("--api-key", default="", help=f"Sent as bearer token (default: {env.API_KEY.name}).")
    add("--endpoint", choices=("chat", "completions"), default="chat", help="Which API is loaded (default: chat).")
    add("--temperature", type=_at_least_0, default=0.0, help="0 is greedy (default: 0).")
    add(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Make every answer as long as asked for, so that loads are alike; where the server takes the field (default: on).",
    )
    add("--extra-body", type=_json_object, default={}, metavar="JSON", help="More fields of every request's body.")
    add("--keep-alive", action=argparse.BooleanOptionalAction, default=True, help="Use connections again (default: on).")
    waits = Timeouts()
    add("--connect-timeout", type=_positive, default=waits.connect, metavar="S", help=f"Default: {waits.connect:g} s.")
    add("--first-timeout", type=_positive, default=waits.first, metavar="S", help=f"To the first content: {waits.first:g} s.")
    add("--stall-timeout", type=_positive, default=waits.stall, metavar="S", help=f"Between contents: {waits.stall:g} s.")
    add("--timeout", type=_positive, default=waits.total, metavar="S", help=f"Of a whole request: {waits.total:g} s.")


def _load_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--concurrency", "--max-concurrency", type=_text, metavar="N,N", help="Closed loop: clients, one run each.")
    add("--rate", "--request-rate", type=_text, metavar="R,R", help="Open loop: requests per second, one run each.")
    add("--steps", "--ramp", type=_text, metavar="STEPS", help=f"Open loop in one run: {FORMS}.")
    add("--trace", type=_text, metavar="FILE", help="Replay a trace: the same as --workload trace --path FILE.")
    add("--arrivals", choices=PROCESSES, default="", help="Of an open loop (default: poisson; gamma with --burstiness).")
    add("--burstiness", type=_positive, default=1.0, metavar="B", help="Of gamma arrivals: below 1 in bursts, above 1 evenly.")
    add("--ramp-up", type=_at_least_0, default=0.0, metavar="S", help="Closed loop: start the clients over so many seconds.")


def _extent_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--num-prompts", type=_count, default=0, metavar="N", help="Counted requests (default: 4 per client, at least 48).")
    add("--duration", type=_positive, default=0.0, metavar="S", help="Measured seconds (default: 30 of an open loop).")
    add(
        "--warmup",
        "--num-warmups",
        type=_count_or_none,
        default=-1,
        metavar="N",
        help="Requests before those that count (default: one per client, or what comes in 2 s).",
    )
    add("--warmup-seconds", type=_at_least_0, default=0.0, metavar="S", help="Seconds before anything counts (default: 0).")
    add("--repeats", type=_count, default=1, metavar="N", help="Runs of each load, in turns, with other prompts (default: 1).")
    add("--seed", type=int, default=0, help="Same seed, same prompts and arrivals (default: 0).")
    add(
        "--same-prompts",
        action="store_true",
        help="Send the same prompts in every run; later runs then find earlier ones' in the prefix cache.",
    )


def _slo_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--slo", "--goodput", nargs="+", default=[], metavar="LIMIT", help=f"Limits of a good request: {slo.FORMS}.")
    add(
        "--find-capacity",
        nargs="?",
        const="rate",
        default="",
        choices=("rate", "concurrency"),
        help="Search for the highest rate (or number of clients) that still meets the SLO.",
    )
    add("--capacity-share", type=_percent, default=95.0, metavar="PERCENT", help="Of requests that must meet it (default: 95).")
    add("--capacity-tolerance", type=_positive, default=10.0, metavar="PERCENT", help="Of the capacity found (default: 10).")


def _output_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--output", type=_path, default=None, metavar="FILE", help="Write the result as JSON, for compare and report.")
    add("--csv", type=_path, default=None, metavar="FILE", help="Write a row per run.")
    add("--csv-requests", type=_path, default=None, metavar="FILE", help="Write a row per request.")
    add("--html", type=_path, default=None, metavar="FILE", help="Write a report with plots.")
    add("--json", action="store_true", help="Print the result as JSON instead of a table.")
    add("--progress", action=argparse.BooleanOptionalAction, default=True, help="Show progress on stderr (default: on).")
    add("--metrics", action=argparse.BooleanOptionalAction, default=True, help="Read the server's /metrics, twice a second.")
    add(
        "--max-failures",
        type=_count_or_none,
        default=0,
        metavar="N",
        help="Failed requests without a failing exit status (default: 0).",
    )
    add(
        "--max-lag",
        type=_positive,
        default=MAX_LAG_MS,
        metavar="MS",
        help=f"p99 of a valid client (default: {MAX_LAG_MS:g} ms).",
    )


def _positive(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return value


def _at_least_0(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}")
    return value


def _percent(text: str) -> float:
    if (value := _positive(text)) > 100:
        raise argparse.ArgumentTypeError(f"must be at most 100, got {text}")
    return value


def _text(text: str) -> str:
    """Nobody asks for nothing on purpose: an unset variable of a script does."""
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def _path(text: str) -> Path:
    return Path(_text(text))


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def _count_or_none(text: str) -> int:
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}")
    return value


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise argparse.ArgumentTypeError(f"is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    if taken := sorted(RESERVED & value.keys()):
        raise argparse.ArgumentTypeError(f"must not set {taken[0]!r}, which the load generator does")
    return value
