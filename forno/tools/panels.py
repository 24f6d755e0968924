"""The terminal view of ``forno top``: what a ``Watch`` knows, drawn with rich for a console of any size. It asks nobody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from forno.observe.words import LACKS
from forno.tools.durations import UNKNOWN, age, latency
from forno.tools.watch import LABELS, Asked, State, Step, Watch, finite

COLORS = {
    "weights": "blue",
    "kv": "cyan",
    "compute": "green",
    "overhead": "yellow",
    "starved": "magenta",
    "idle": "bright_black",
}
GLYPHS = {"weights": "█", "kv": "▓", "compute": "▒", "overhead": "▚", "starved": "╳", "idle": "·"}
"""What tells the parts of a bar apart where there is no color."""
SPARKS = "▁▂▃▄▅▆▇█"
HEAD = 10
"""Width of the first column."""
WIDE = 150
"""Columns from which requests stand beside the summary."""
BANDWIDTHS, PEAKS = {"dram": "DRAM", "l3": "L3"}, ("int8", "bf16", "fp32")
"""Ceilings in bytes and in operations per second."""
OTHER_COLUMNS = 65
"""What a table of requests needs beside their ids."""
SUMMARY_COLUMNS = 80
SUMMARY_ROWS = 13
"""Lines of the summary, its rule included."""


def view(watch: Watch, width: int, height: int, color: bool = True, problem: str = "") -> RenderableType:
    """Everything, for a console of ``width`` by ``height``. ``problem``: why the last question had no answer."""
    if not watch.samples:
        return Text(problem or f"asking {watch.url} ...", style="bold red" if problem else "")
    state = watch.samples[-1].state
    left = SUMMARY_COLUMNS if width >= WIDE else width
    lines = _summary(watch, state, left, color)
    summary, rows = Group(*lines), len(lines) + 1
    head: list[RenderableType] = [_title(watch, state, width), Rule(style="bright_black", characters="─")]
    if problem:
        head.append(Text(f"old: {problem}", style="bold red", no_wrap=True, overflow="ellipsis"))
    if width < WIDE:
        return Group(*head, summary, Text(""), _requests(state.requests, height - len(head) - rows, width))
    room = height - len(head) - 1
    beside = Table.grid(padding=(0, 3), expand=True)
    beside.add_column(width=left)
    beside.add_column(ratio=1)
    steps = _steps(state.steps, room - rows)
    beside.add_row(Group(summary, Text(""), steps), _requests(state.requests, room, width - left - 3))
    return Group(*head, beside)


def _title(watch: Watch, state: State, width: int) -> Text:
    parts = [("forno top", "bold"), (state.model or "?", "bold cyan"), (f"version {state.version or '?'}", "")]
    parts += [(f"up {age(state.uptime)}", ""), (watch.url, "bright_black")]
    title = Text("  ").join(Text(text, style=style) for text, style in parts)
    title.truncate(width, overflow="ellipsis")
    return title


# -- the summary --------------------------------------------------------------------------------------------------


def _summary(watch: Watch, state: State, width: int, color: bool) -> list[Text]:
    shares, bar = watch.shares(), width - HEAD
    steps = state.steps[-(bar - 34) :]
    lines = [
        _line("waits for", *_stacked(shares, bar, color)),
        *(_line("", *line) for line in _legend(shares, bar)),
        _line("roofline", *_roofline(steps)),
        _line("predicted", *_predicted(steps)),
        _line("ceilings", (_ceilings(state), "")),
        _line("requests", (_counts(state), "")),
        _line("tokens", (_rates(state), "")),
        _line("KV cache", *_memory(state, bar)),
    ]
    found = watch.percentiles()
    for key, name in (("ttft", "TTFT"), ("itl", "ITL"), ("e2e", "E2E")):
        values = found.get(key) or {}
        lines.append(_line(name, (" ".join(f"{q} {latency(v):<10}" for q, v in values.items()) or UNKNOWN, "")))
    seconds = watch.seconds
    since = f"shares and percentiles: last {seconds:.0f} s" if seconds else "shares and percentiles: since the server's start"
    lines.append(_line("", (since, "bright_black")))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _line(head: str, *parts: tuple[str, str]) -> Text:
    return Text.assemble((f"{head:<{HEAD}}", "bold"), *parts)


def _stacked(shares: dict[str, float], width: int, color: bool) -> list[tuple[str, str]]:
    """A bar of ``width`` cells; rounding errors go to the largest part."""
    if not shares:
        return [(UNKNOWN, "")]
    names = _ordered(shares)
    cells = {name: round(shares[name] * width) for name in names}
    cells[max(names, key=lambda name: shares[name])] += width - sum(cells.values())
    return [(("█" if color else GLYPHS.get(name, "?")) * cells[name], COLORS.get(name, "red")) for name in names]


def _legend(shares: dict[str, float], width: int) -> list[list[tuple[str, str]]]:
    """The parts by name, on as many lines as they need."""
    lines: list[list[tuple[str, str]]] = [[]]
    for name in _ordered(shares):
        piece = (f"{name} {shares[name]:.0%}  ", COLORS.get(name, "red"))
        if lines[-1] and sum(len(text) for text, _ in lines[-1]) + len(piece[0].rstrip()) > width:
            lines.append([])
        lines[-1].append(piece)
    return lines


def _ordered(shares: dict[str, float]) -> list[str]:
    return [*[name for name in LABELS if name in shares], *sorted(set(shares) - set(LABELS))]


def _roofline(steps: Sequence[Step]) -> list[tuple[str, str]]:
    shares = finite(step.share for step in steps)
    if not shares:
        return [(UNKNOWN, "")]
    return [(spark(shares, 1.0), "green"), (f" {median(shares):.0%} of what the machine can", "")]


def _predicted(steps: Sequence[Step]) -> list[tuple[str, str]]:
    known = [(step.predicted, step.seconds) for step in steps if step.predicted and step.seconds]
    if not known:
        return [(UNKNOWN, "")]
    ratios = [predicted / measured for predicted, measured in known]
    middle = median(ratios)
    text = f" {middle:.2f} of measured ({latency(median(measured for _, measured in known))})"
    return [(spark(ratios, 2.0), "green" if 0.8 <= middle <= 1.25 else "yellow"), (text, "")]


def _ceilings(state: State) -> str:
    known = state.ceilings or {}
    parts = [f"{name} {value / 1e9:.3g} GB/s" for key, name in BANDWIDTHS.items() if (value := known.get(key))]
    if peaks := [f"{key} {value / 1e12:.2g}" for key in PEAKS if (value := known.get(key))]:
        parts.append(f"{', '.join(peaks)} Top/s")
    return ", ".join(parts) or "not measured"


def _counts(state: State) -> str:
    rate = (state.rates or {}).get("requests_per_s")
    return f"{_number(state.running)} running, {_number(state.waiting)} waiting, {_number(rate, 1)} finished/s"


def _rates(state: State) -> str:
    rates = state.rates or {}
    return f"{_number(rates.get('output_tokens_per_s'))} generated/s, {_number(rates.get('prompt_tokens_per_s'))} prompt/s"


def _memory(state: State, width: int) -> list[tuple[str, str]]:
    room = max(width - 46, 8)
    used = state.kv_usage
    cells = round((used or 0.0) * room)
    text = f" {_share(used)} used, {_share(state.kv_waste)} wasted, {_share(state.prefix_hit_share)} prefix hits"
    return [("█" * cells, "cyan"), ("░" * (room - cells), "bright_black"), (text, "")]


# -- tables -------------------------------------------------------------------------------------------------------


def _requests(requests: Sequence[Asked], room: int, width: int) -> RenderableType:
    """As many as fit: those that run, and those that wait with the reason."""
    if not requests:
        return Text("no request is here", style="bright_black")
    shown = _fitting(requests, max(room - 1, 1))
    table = Table(box=None, padding=(0, 1), expand=True, header_style="bold", pad_edge=False)
    id_width = max(min(max(len(request.id) for request in shown), width - OTHER_COLUMNS), 12)  # whole, to be copied, if it fits
    table.add_column("request", no_wrap=True, width=id_width, overflow="ellipsis")
    table.add_column("state", no_wrap=True, max_width=9, overflow="ellipsis")
    for name in ("prompt", "cached", "output", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("waits for", no_wrap=True, ratio=1, overflow="ellipsis")
    for request in shown:
        waits = request.state == "waiting" or request.waits_for is not None
        output = f"{_number(request.generated)}/{_number(request.max_tokens)}"
        cells = [request.id, request.state or UNKNOWN, _number(request.prompt), _number(request.cached), output]
        texts = map(Text, (*cells, age(request.age), LACKS.get(request.waits_for or "", request.waits_for or "")))
        table.add_row(*texts, style="yellow" if waits else "")  # strings would be read as rich's markup
    if len(shown) < len(requests):
        table.add_row(f"... and {len(requests) - len(shown)} more", style="bright_black")
    return table


def _fitting(requests: Sequence[Asked], room: int) -> list[Asked]:
    """At most ``room`` lines, the one that says how many are missing included; those that wait get up to half of them."""
    if len(requests) <= room:
        return list(requests)
    room = max(room - 1, 1)
    waiting = [r for r in requests if r.state == "waiting"]
    running = [r for r in requests if r.state != "waiting"]
    first = running[: max(room - len(waiting), room - room // 2)]
    return [*first, *waiting[: room - len(first)]]


def _steps(steps: Sequence[Step], room: int) -> RenderableType:
    if not steps or room < 3:
        return Text("")
    table = Table(box=None, padding=(0, 1), expand=True, header_style="bold", pad_edge=False)
    table.add_column("step", no_wrap=True)
    for name in ("requests", "tokens", "prompt", "took", "predicted", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("waited for", no_wrap=True)
    for step in reversed(steps[-(room - 1) :]):
        cells = [str(step.number), _number(step.rows), _number(step.tokens), _number(step.prompt_tokens)]
        label = Text(step.label or UNKNOWN, style=COLORS.get(step.label or "", ""))
        table.add_row(*cells, latency(step.seconds), latency(step.predicted), _share(step.share), label)
    return table


# -- numbers for people -------------------------------------------------------------------------------------------


def spark(values: Iterable[float], top: float) -> str:
    """One character per value, from 0 to ``top``; what is above is drawn as ``top``."""
    return "".join(SPARKS[min(max(int(value / top * len(SPARKS)), 0), len(SPARKS) - 1)] for value in values)


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}" if value < 0.1 else f"{value:.0%}"


def _number(value: float | None, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"
