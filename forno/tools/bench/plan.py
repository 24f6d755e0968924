"""From options to what is measured: a server, loads, and how much of each. It sends nothing."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any

from forno import env
from forno.bench import slo
from forno.bench.arrivals import Closed, Open, Stage, parse_stages
from forno.bench.ask import base_url
from forno.bench.bench import Load, Settings
from forno.bench.client import Target, Timeouts
from forno.bench.load import FAILURES_IN_A_ROW, Extent, Trace
from forno.bench.workload import Workload
from forno.errors import ConfigError
from forno.tools.bench import knobs

MIN_REQUESTS, PER_CLIENT = 48, 4
"""A closed loop's counted requests, unless told: so many, and so many for each client."""
MOST_CLIENTS = 60_000
"""More connections than one address has ports for them."""
OPEN_SECONDS = 30.0
WARMUP_SECONDS = 2.0
"""Of an open loop: its warm-up requests, unless told, are those that come in this time."""


def _numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text!r}: write numbers, such as 1,8,32") from None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the options say."""

    target: Target
    settings: Settings
    loads: tuple[Load, ...]
    args: argparse.Namespace

    def extent(self, load: Load) -> Extent:
        """How much of a load is measured."""
        args = self.args
        requests, seconds = float(args.num_prompts or math.inf), args.duration or math.inf
        whole = isinstance(load, Trace) or (isinstance(load, Open) and math.isfinite(load.seconds))
        if not (args.num_prompts or args.duration or whole):
            requests = max(MIN_REQUESTS, PER_CLIENT * load.clients) if isinstance(load, Closed) else requests
            seconds = seconds if isinstance(load, Closed) else OPEN_SECONDS
        warmup = load.clients if isinstance(load, Closed) else 0 if whole else math.ceil(WARMUP_SECONDS * load.value)
        failures = max(FAILURES_IN_A_ROW, 2 * load.clients if isinstance(load, Closed) else 0)
        return Extent(requests, seconds, warmup if args.warmup < 0 else args.warmup, args.warmup_seconds, failures)


def plan_of(args: argparse.Namespace) -> Plan:
    """Raises ``ConfigError`` for options that contradict each other."""
    if args.trace:
        args.workload, args.knob_path = "trace", args.trace
    workload = knobs.workload_of(args)
    limits = slo.parse(" ".join(args.slo)) if args.slo else {}
    if args.find_capacity and not limits:
        raise ConfigError(f"--find-capacity needs --slo: {slo.FORMS}")
    fields: dict[str, Any] = {"temperature": args.temperature, **({"ignore_eos": True} if args.ignore_eos else {})}
    target = Target(
        url=base_url(args.url),
        model=args.model,
        api_key=args.api_key or env.API_KEY.get(),
        fields={**fields, **args.extra_body},
        timeouts=Timeouts(args.connect_timeout, args.first_timeout, args.stall_timeout, args.timeout),
        keep_alive=args.keep_alive,
        completions=args.endpoint == "completions",
    )
    settings = Settings(workload, args.seed, limits, args.max_lag, fresh=not args.same_prompts)
    return Plan(target, settings, tuple(_loads(args, workload)), args)


def _loads(args: argparse.Namespace, workload: Workload) -> list[Load]:
    given = [name for name in ("concurrency", "rate", "steps") if getattr(args, name)]
    if len(given) > 1:
        raise ConfigError(f"--{given[0]} and --{given[1]} contradict each other: a load is closed or open")
    if workload.name == "trace":
        if given or args.find_capacity:
            raise ConfigError("a trace brings its own arrivals: use --speed, or send it as --workload file")
        return [Trace()]
    process = args.arrivals or ("gamma" if args.burstiness != 1 else "poisson")
    if args.steps:
        return [Open(parse_stages(args.steps), process, args.burstiness)]
    if args.rate:
        return [Open((Stage(rate),), process, args.burstiness) for rate in _numbers(args.rate, "--rate")]
    clients = _numbers(args.concurrency or "1,8,32", "--concurrency")
    if not all(abs(value) <= MOST_CLIENTS and value == int(value) for value in clients):
        raise ConfigError(f"--concurrency {args.concurrency!r}: clients are whole numbers from 1 to {MOST_CLIENTS}")
    return [Closed(int(value), args.ramp_up) for value in clients]
