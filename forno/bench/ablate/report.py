"""An ablation for people and for scripts: tables, a sentence for each arm, and the best setting. It measures nothing."""

from __future__ import annotations

import shlex
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec

from forno.bench.ablate.accuracy import Accuracy
from forno.bench.ablate.counters import Work
from forno.bench.ablate.facts import Facts
from forno.bench.ablate.outcome import METRICS, Found, Metric, brief, moved_words
from forno.bench.ablate.study import Measured
from forno.bench.ablate.why import Side, reason
from forno.bench.numbers import listed, plural, shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NOTES = (
    "Each arm is one change to the baseline, in a server of its own, with the same prompts as all arms of its round. Numbers "
    "are means over rounds; changes are against the baseline's runs before and after in the same round, in brackets their "
    "95 % interval. · marks what is within the noise; of what is within it, one number in twenty is marked as real.",
    "memory: peak resident, without claiming unused KV memory ahead. waste: of the KV slots that requests held, those without "
    "a token. KL: lower bound of the divergence of the arm's predictions from the baseline's, in nats per token (tokens that "
    "both tell among their 20 likeliest, and one bucket for the rest); identical: every log-probability is the same.",
)


class Line(msgspec.Struct, kw_only=True):
    """One arm with everything that is said of it."""

    found: Found
    command: list[str]
    """To start its server."""
    sentence: str = ""
    error: str = ""
    accuracy: Accuracy | None = None
    work: Work | None = None
    facts: Facts | None = None
    running: float | None = None
    start_seconds: float | None = None
    problems: list[str] = []
    """What a reader must know of its runs: failed requests, a client that was the bottleneck."""


class Best(msgspec.Struct, kw_only=True):
    """The setting that serves best, and how that is known."""

    command: list[str]
    arms: list[str] = []
    """Names of the changes it is made of; none: the baseline."""
    said: str
    found: Found | None = None
    """Measured again, in rounds of its own."""


class Ablation(msgspec.Struct, kw_only=True):
    """The result as ``--json`` prints it."""

    tool: str
    started: str
    model: str
    workload: dict[str, Any]
    load: str
    rounds: int
    slo: dict[str, float]
    baseline: Line
    arms: list[Line]
    best: Best | None = None
    interrupted: bool = False


def line_of(found: Found, measured: Measured, facts: Facts, command: list[str]) -> Line:
    """Everything but the sentence, which needs the baseline's line."""
    line = Line(found=found, command=command, error=measured.error, accuracy=measured.accuracy, facts=facts)
    if measured.visits:
        line.work = measured.work
        line.running = _running(measured)
        line.problems = list(dict.fromkeys(p for visit in measured.visits for p in visit.run.summary.problems))
        line.start_seconds = fmean(visit.start_seconds for visit in measured.visits)
    return line


def _running(measured: Measured) -> float | None:
    """Requests that ran at a time, on average over the measured windows."""
    found = []
    for visit in measured.visits:
        start, end = visit.run.window
        found += [s.running for s in visit.run.samples if s.running is not None and start <= s.time <= end]
    return fmean(found) if found else None


def explain(line: Line, baseline: Line) -> str:
    """The sentence for an arm: what moved, and why."""
    if line.error:
        return f"Not measured: {line.error}"
    if line.work is None or line.facts is None or baseline.work is None or baseline.facts is None:
        return "Not measured."
    base, arm = (Side(w, f, r) for w, f, r in ((x.work, x.facts, x.running) for x in (baseline, line)))  # type: ignore[arg-type]
    moved = moved_words(line.found, baseline.found)
    return f"{moved[0].upper()}{moved[1:]}. {reason(line.found.arm.technique, base, arm)}"


def print_ablation(ablation: Ablation, console: Console) -> None:
    """Everything, in the order in which it is read."""
    from rich.padding import Padding
    from rich.text import Text

    lines = [ablation.baseline, *ablation.arms]
    console.print(Text.assemble((ablation.model, "bold"), f" · {ablation.workload.get('name')} · {ablation.load}"))
    console.print(Text(f"{listed(ablation.workload)} · {plural(ablation.rounds, 'round')}{_slo(ablation)}", style="dim"))
    console.print()
    console.print(_metrics_table(ablation, lines))
    console.print()
    console.print(_work_table(lines))
    for line in ablation.arms:
        console.print()
        console.print(Text(line.found.arm.title, style="bold"), Text(" ".join(line.found.arm.flags), style="dim"))
        console.print(Padding(Text(line.sentence), (0, 0, 0, 2)))
    _print_problems(lines, console)
    console.print()
    if ablation.best is not None:
        console.print(Text.assemble(("Best setting found. ", "bold green"), ablation.best.said))
        console.print(Text(f"  {shlex.join(ablation.best.command)}"), soft_wrap=True)
        console.print()
    if ablation.interrupted:
        console.print(Text("Interrupted: the last round was not finished and does not count.", style="yellow"))
    for note in NOTES:
        console.print(Text(note, style="dim"))


def _print_problems(lines: list[Line], console: Console) -> None:
    from rich.text import Text

    if any(line.problems for line in lines):
        console.print()
    for line in lines:
        for problem in line.problems:
            console.print(Text(f"! {line.found.arm.title}: {problem}", style="yellow"))


def _slo(ablation: Ablation) -> str:
    limits = ", ".join(f"{name} at most {value:g} ms" for name, value in ablation.slo.items())
    return f" · goodput: {limits}" if limits else ""


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _metrics_table(ablation: Ablation, lines: list[Line]) -> Table:
    metrics = [m for m in METRICS if any(m.name in line.found.values for line in lines)]
    table = _table(*(f"{m.title}, {m.unit}" for m in metrics), "waste", "KL")
    for line in lines:
        base = line is ablation.baseline
        cells = [_cell(line.found, metric, base) for metric in metrics]
        waste = line.work.waste_share if line.work else None
        kl = "" if base or line.accuracy is None else "identical" if line.accuracy.identical else f"{line.accuracy.kl:.2g}"
        table.add_row(line.found.arm.title, *cells, "–" if waste is None else f"{100 * waste:.1f} %", kl or "–")
    return table


def _cell(found: Found, metric: Metric, base: bool) -> Any:
    from rich.text import Text

    value = found.values.get(metric.name)
    if value is None:
        return Text("–", style="dim")
    number = shown(value / 1e6 if metric.unit == "MB" else value)
    ratio = found.ratios.get(metric.name)
    if base or ratio is None:
        return Text(number, style="red" if value == 0.0 and not base and not metric.lower else "")
    if not ratio.real:
        return Text(f"{number} ·", style="dim")
    better = (ratio.value < 1) == metric.lower
    return Text(f"{number} {brief(ratio)}", style="green" if better else "red")


def _work_table(lines: list[Line]) -> Table:
    """What the servers computed and moved."""
    heads = ("tokens a step", "steps", "computed", "weights, MB", "KV, MB", "activations, MB", "GFLOP")
    table = _table(*heads, "running", "start, s")
    table.title, table.title_justify, table.title_style = "for each output token (steps: for 1,000)", "left", "dim"
    for line in lines:
        work = line.work
        if work is None or not work.output_tokens:
            table.add_row(line.found.arm.title, *["–"] * 9)
            continue
        moved = [work.per_output(x) for x in (work.weight_bytes, work.kv_bytes, work.activation_bytes)]
        table.add_row(
            line.found.arm.title,
            shown(work.rows_per_step),
            shown(1000 * work.steps / work.output_tokens),
            shown(work.rows / work.output_tokens),
            *(shown(None if x is None else x / 1e6) for x in moved),
            shown(None if work.flops is None else work.flops / work.output_tokens / 1e9),
            shown(line.running),
            shown(line.start_seconds),
        )
    return table
