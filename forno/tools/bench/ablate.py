"""``forno bench ablate``: start forno with one technique changed at a time, and say what each is worth on this workload."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from forno import __version__
from forno.bench import slo
from forno.bench.ablate.arms import BASELINE, Arm, chosen, combined, every_arm
from forno.bench.ablate.outcome import Found, Objective, candidates, compare, said
from forno.bench.ablate.report import Ablation, Best, Line, explain, line_of, print_ablation
from forno.bench.ablate.study import Measured, Plan, Study
from forno.bench.arrivals import Closed, Open, Stage
from forno.bench.bench import run_loop
from forno.bench.extra import need
from forno.bench.load import Extent
from forno.bench.progress import Progress
from forno.config import DEFAULT_MODEL
from forno.errors import ConfigError, ModelError
from forno.tools.bench import knobs
from forno.tools.bench.checks import check_writable
from forno.tools.bench.facts import facts_of
from forno.tools.bench.session import INTERRUPTED, TERMINATED, console, stop_on_interrupt

PER_CLIENT = 4
"""Counted requests of a visit for each client, unless told."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL, help="As forno serve takes it (default: the built-in one).")
    add("--serve", default="", metavar="OPTIONS", help='Options of the baseline, such as --serve="--threads 4".')
    add("--also-model", action="append", default=[], metavar="FILE", help="Another file of the model, as one more arm.")
    add("--each-pass", action="store_true", help="Also leave out every fusion pass by itself.")
    add("--only", default="", metavar="NAMES", help="Change these only: names of arms or techniques, comma-separated.")
    add("--skip", default="", metavar="NAMES", help="Do not change these.")
    add("--list", action="store_true", help="Print the arms and their options, and start nothing.")
    knobs.add_options(parser)
    group = parser.add_argument_group("load")
    group.add_argument("--concurrency", type=int, default=16, metavar="N", help="Closed loop: clients (default: 16).")
    group.add_argument("--rate", type=float, default=0.0, metavar="R", help="Open loop instead: requests per second, Poisson.")
    group.add_argument("--num-prompts", type=int, default=0, metavar="N", help="Counted requests (default: 4 per client).")
    group.add_argument("--rounds", type=int, default=3, metavar="N", help="Turns through all arms (default: 3).")
    group.add_argument("--seed", type=int, default=0, help="Same seed, same prompts (default: 0).")
    group.add_argument("--slo", nargs="+", default=[], metavar="LIMIT", help=f"Limits of a good request: {slo.FORMS}.")
    group.add_argument("--max-kl", type=float, default=0.02, metavar="NATS", help="Of the best setting (default: 0.02).")
    group = parser.add_argument_group("output")
    group.add_argument("--output-dir", type=Path, default=None, metavar="DIR", help="Write a result file of every arm there.")
    group.add_argument("--json", action="store_true", help="Print the result as JSON instead of tables.")
    group.add_argument("--progress", action=argparse.BooleanOptionalAction, default=True, help="Show progress (default: on).")


def run(args: argparse.Namespace) -> int:
    """Measure, explain, recommend; returns the exit status."""
    plan = plan_of(args)
    base = facts_of(plan.model, plan.flags)
    for model in args.also_model:
        facts_of(model, plan.flags)  # a file that is not there is said now, not in the middle
    arms = chosen(every_arm(base.formats, args.each_pass, args.also_model), args.only, args.skip)
    if args.list:
        for arm in arms:
            print(f"{arm.name:20} {arm.technique:12} {' '.join(arm.flags) or arm.model}")
        return 0
    need("aiohttp", *([] if args.json else ["rich"]), what="forno bench ablate")
    if args.output_dir is not None:
        args.output_dir.mkdir(parents=True, exist_ok=True)
        check_writable(args.output_dir / f"{BASELINE}.json")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        ablation = run_loop(lambda: _ablate(plan, arms, args, started))
    except asyncio.CancelledError:
        return TERMINATED
    except _Interrupted as error:
        print(f"forno bench ablate: {error}", file=sys.stderr)
        return INTERRUPTED
    if args.json:
        sys.stdout.write(msgspec.json.encode(ablation).decode() + "\n")
    else:
        print_ablation(ablation, console())
    sys.stdout.flush()
    if ablation.interrupted:
        return INTERRUPTED
    failed = [line.found.arm.title for line in ablation.arms if line.error]
    if failed:
        print(f"forno bench ablate: not measured: {'; '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


class _Interrupted(Exception):
    """The user stopped it before there was anything to show."""


def plan_of(args: argparse.Namespace) -> Plan:
    """Raises ``ConfigError`` for options that mean nothing."""
    if args.rounds < 1 or args.num_prompts < 0 or args.rate < 0 or not args.max_kl >= 0:
        raise ConfigError("--rounds must be at least 1, --num-prompts, --rate and --max-kl at least 0")
    load = Open((Stage(args.rate),), "poisson") if args.rate else Closed(args.concurrency)
    clients = args.concurrency if isinstance(load, Closed) else max(1, round(2 * args.rate))
    count = args.num_prompts or PER_CLIENT * clients
    return Plan(
        model=args.model,
        workload=knobs.workload_of(args),
        load=load,
        extent=Extent(requests=count, warmup_requests=clients),
        rounds=args.rounds,
        slo=slo.parse(" ".join(args.slo)) if args.slo else {},
        seed=args.seed,
        flags=_split(args.serve),
    )


def _split(options: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(options))
    except ValueError as error:
        raise ConfigError(f"--serve {options!r}: {error}") from None


async def _ablate(plan: Plan, arms: Sequence[Arm], args: argparse.Namespace, started: str) -> Ablation:
    progress = Progress()
    study = Study(plan, say=progress.say, rest=progress.end)
    if args.progress:
        study.watch = progress.begin
    stop_on_interrupt(progress, study.stop)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # so that no server stays
    try:
        baseline, others = await study.measure(arms)
        if not baseline.visits:
            raise _Interrupted("interrupted before a round was finished: there is nothing to compare")
        alone, found = compare(baseline, others)
        ablation = _told(plan, baseline, others, alone, found, started)
        ablation.interrupted = study.stopped
        if not study.stopped:
            ablation.best, confirmed = await _best(plan, study, alone, found, others, args.max_kl)
            others = [*others, *confirmed]
    finally:
        progress.end()
    if args.output_dir is not None:
        _write(plan, [baseline, *others], args.output_dir, started)
    return ablation


def _told(
    plan: Plan, baseline: Measured, others: Sequence[Measured], alone: Found, found: Sequence[Found], started: str
) -> Ablation:
    """Lines of all arms, with their sentences."""

    def line(one: Found, measured: Measured) -> Line:
        command = ["forno", "serve", *plan.command(measured.arm)]
        try:
            facts = facts_of(measured.arm.model or plan.model, [*plan.flags, *measured.arm.flags])
        except (ConfigError, ModelError) as error:
            measured.error = measured.error or str(error)
            return Line(found=one, command=command, error=measured.error)
        return line_of(one, measured, facts, command)

    first = line(alone, baseline)
    lines = [line(one, measured) for one, measured in zip(found, others, strict=True)]
    for each in lines:
        each.sentence = explain(each, first)
    return Ablation(
        tool=f"forno bench ablate {__version__}",
        started=started,
        model=baseline.served,
        workload={**plan.workload.params(), "seed": plan.seed},
        load=plan.load.words,
        rounds=len({visit.round for visit in baseline.visits}),
        slo=plan.slo,
        baseline=first,
        arms=lines,
    )


async def _best(
    plan: Plan, study: Study, alone: Found, found: Sequence[Found], measured: Sequence[Measured], max_kl: float
) -> tuple[Best, list[Measured]]:
    """The changes that helped, together, measured again: what was chosen for its numbers needs new ones."""
    objective = Objective.of(plan.slo, max_kl)
    what = objective.metric.title if plan.slo else f"{objective.metric.title} tok/s"
    chosen_arms = candidates(objective, alone, found, measured)
    baseline_command = ["forno", "serve", "--model", plan.model, *plan.flags]
    if not chosen_arms:
        return Best(command=baseline_command, said=f"The baseline: no single change improved {what} beyond the noise."), []
    tried = combined(chosen_arms)
    again, (result,) = await study.measure([tried])
    names = ", ".join(arm.title for arm in chosen_arms)
    if study.stopped or result.error or not result.visits:
        why = result.error or "interrupted"
        return Best(command=baseline_command, said=f"The baseline: {names} promised more {what}, but together: {why}."), []
    _, (confirmed,) = compare(again, [result])
    ratio = confirmed.ratios.get(objective.metric.name)
    change = "is above none" if ratio is None else said(ratio)
    if objective.gain(confirmed, alone) is None:
        text = f"The baseline: {names} improved {what} alone, but measured again together by {change}, within the noise."
        return Best(command=baseline_command, said=text, found=confirmed), [result]
    command = ["forno", "serve", *plan.command(tried)]
    text = f"{names}: {what} {change} against the baseline, measured again together."
    return Best(command=command, arms=[a.name for a in chosen_arms], said=text, found=confirmed), [result]


def _write(plan: Plan, everyone: Sequence[Measured], folder: Path, started: str) -> None:
    for measured in everyone:
        if measured.visits:
            result = measured.result(plan, f"forno bench ablate {__version__}", started)
            (folder / f"{measured.arm.name}.json").write_bytes(msgspec.json.encode(result))
