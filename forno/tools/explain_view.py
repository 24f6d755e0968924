"""The view of ``forno explain``: lines of (text, style) made of what a server says. It asks nobody and prints nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from forno.observe.words import LACKS
from forno.tools.durations import latency

Piece: TypeAlias = str | tuple[str, str]
Line: TypeAlias = tuple[Piece, ...]

COLORS = {
    "reading": "bright_black",
    "tokenizing": "cyan",
    "queued": "yellow",
    "prefill": "blue",
    "beside": "bright_blue",
    "decode": "green",
    "slowed": "red",
    "preempted": "bright_red",
    "recompute": "magenta",
    "constrained": "bright_magenta",
    "overhead": "bright_black",
    "detokenizing": "cyan",
    "responding": "bright_yellow",
    "client": "bright_cyan",
    "unrecorded": "white",
}
PHASES = {
    "arriving": ("cyan", "·"),
    "waiting": ("yellow", "░"),
    "prefill": ("blue", "▓"),
    "decode": ("green", "█"),
    "preempted": ("bright_red", "╳"),
    "leaving": ("bright_yellow", "·"),
    "unrecorded": ("white", "?"),
}
"""Color and glyph: the glyph tells phases apart where there is no color."""
NAMES = 3
"""Requests that are named in a line."""
OTHER_COLUMNS, NARROW, COUNTS = 62, 80, 13
"""What a table of requests needs beside their ids; below this width it has no counts of tokens, which take so much of it."""
LEAST_ID = 12
LABEL, NUMBERS = 12, 29
"""Width of the first column, and of all before a bar."""


def request_table(found: Mapping[str, Any], width: int) -> Iterator[Line]:
    """The latest requests, and after them the slowest of these."""
    requests = found["requests"]
    if not requests:
        yield ("no requests are remembered",)
        return
    counts = width >= NARROW
    ids = _id_width([r["id"] for r in requests], width - OTHER_COLUMNS + (0 if counts else COUNTS))
    told = f" {'prompt':>6} {'out':>5}" if counts else ""
    yield ((f"{'request':{ids}} {'state':9} {'age':>8} {'took':>8}{told}  largest part", "bold"),)
    for r in requests:
        yield _row(r, ids, counts)
    slowest = max(requests, key=lambda r: r["seconds"])
    yield ()
    part = f"{latency(slowest['slowest_seconds'])} of its {latency(slowest['seconds'])} were {slowest['slowest']}"
    yield (f"slowest: {part}",)
    yield ("         ", (f"forno explain {slowest['id']}", "bold"))


def _id_width(ids: list[str], room: int) -> int:
    """The column's width. A cut id must still be a beginning that only one of them has: it is what one copies."""
    longest = max(map(len, ids))
    width = min(longest, max(LEAST_ID, room))
    while width < longest and len({_short(id, width) for id in ids}) < len(set(ids)):
        width += 1
    return width


def _row(r: Mapping[str, Any], ids: int, counts: bool) -> Line:
    state = r["reason"] or r["state"]
    color = {"waiting": "yellow", "running": "green", "error": "red", "refused": "red", "abort": "red"}.get(state, "")
    share = r["slowest_seconds"] / r["seconds"] if r["seconds"] else 0.0
    told = f" {r['prompt_tokens']:>6} {r['generated_tokens']:>5}" if counts else ""
    return (
        f"{_short(r['id'], ids):{ids}} ",
        (f"{state:9}", color),
        f" {latency(r['age']):>8} {latency(r['seconds']):>8}{told}  ",
        (r["slowest"], COLORS.get(r["slowest"], "")),
        f" {share:.0%}",
    )


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def request_lines(r: Mapping[str, Any], width: int) -> Iterator[Line]:
    """One request: what it was, its timeline, its parts, the prefix cache, and advice."""
    yield ((r["id"], "bold"), "  ", (_outcome(r), "bold green" if r["state"] == "finished" and not r["error"] else "bold red"))
    first = "" if r["ttft"] is None else f", first token after {latency(r['ttft'])}"
    until = "now" if r["state"] in ("running", "waiting") else "its last"
    said = [f"{latency(r['seconds'])} from its first byte to {until}{first}"]
    if r["prompt_tokens"]:
        made = f"{r['generated_tokens']} of at most {r['max_tokens']} generated"
        said.append(f"{r['prompt_tokens']} prompt tokens, {r['cached_tokens']} of them cached; {made}")
    yield from ((line,) for text in said for line in textwrap.wrap(text, width))
    yield ()
    yield from _timeline(r, width)
    yield ()
    yield from _parts(r, width)
    yield from _facts(r, width)
    yield from _advice(r, width)


def _outcome(r: Mapping[str, Any]) -> str:
    how = {
        "stop": "stopped by itself",
        "length": "reached max_tokens",
        "abort": "its client left",
        "error": "failed",
        "refused": "refused",
    }.get(r["reason"], r["state"])
    return f"{how} ({r['error']})" if r["error"] else how


def _timeline(r: Mapping[str, Any], width: int) -> Iterator[Line]:
    """A bar of all phases to scale; each has at least one column while there are enough."""
    whole, columns = r["seconds"] or 1.0, width - 2
    pieces: list[Piece] = []
    drawn = 0
    for p in r["phases"]:
        end = min(columns, max(round(p["end"] / whole * columns), drawn + 1))
        color, glyph = PHASES.get(p["phase"], ("", "?"))
        pieces.append((glyph * (end - drawn), color))
        drawn = max(drawn, end)
    yield tuple(pieces)
    yield from _phases(r, width)


def _phases(r: Mapping[str, Any], width: int) -> Iterator[Line]:
    """What the glyphs of the bar mean, and how long each took in all."""
    legend: list[Piece] = []
    used = 0
    for phase in dict.fromkeys(p["phase"] for p in r["phases"]):
        color, glyph = PHASES.get(phase, ("", "?"))
        total = sum(p["end"] - p["start"] for p in r["phases"] if p["phase"] == phase)
        said = f"{phase} {latency(total)}"
        if used and used + 2 + len(said) > width:
            yield tuple(legend)
            legend, used = [], 0
        legend += [(f"{glyph} ", color), f"{said}   "]
        used += len(said) + 5
    yield tuple(legend)


def _parts(r: Mapping[str, Any], width: int) -> Iterator[Line]:
    said = max((len(p["means"]) for p in r["parts"]), default=0) + 1
    room = max(10, min(40, width - NUMBERS - said))
    largest = max((p["seconds"] for p in r["parts"]), default=1.0) or 1.0
    for p in r["parts"]:
        bar = "█" * max(1, round(p["seconds"] / largest * room)) if p["share"] >= 0.002 else "▏"
        yield (
            f"{p['kind']:{LABEL}} {latency(p['seconds']):>8} {p['share']:>6.1%} ",
            (f"{bar:{room}}", COLORS.get(p["kind"], "")),
            (f" {p['means']}" if NUMBERS + room + said <= width else "", "bright_black"),
        )
        if p["by"] and p["share"] >= 0.01:
            yield (" " * (LABEL + 1), (_short(_by(p), width - LABEL - 1), "bright_black"))


def _by(part: Mapping[str, Any]) -> str:
    names = list(part["by"].items())
    said = ", ".join(f"{_short(id, 21)} {latency(seconds)}" for id, seconds in names[:NAMES])
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    verb = {"queued": "ran meanwhile", "preempted": "ran meanwhile", "slowed": "prompts of", "beside": "beside"}
    return f"{verb.get(part['kind'], 'of')}: {said}{more}"


def _facts(r: Mapping[str, Any], width: int) -> Iterator[Line]:
    """What explains the parts: the queue, the cache, chunks, batches."""
    facts: list[tuple[str, str]] = []
    waited = {k: v for k, v in sorted(r["waited_for"].items(), key=lambda i: -i[1]) if v >= 0.005 * r["seconds"]}
    if waited:
        facts.append(("waited for", "; ".join(f"{LACKS.get(k, k)} {latency(v)}" for k, v in waited.items())))
        facts.append(("on arrival", f"{r['running']} ran and {r['ahead']} waited"))
    if r["lookup"]:
        facts.append(("prefix cache", r["lookup"]["means"]))
    if r["chunks"]:
        facts.append(("chunks", _chunks(r["chunks"])))
    if r["decode_steps"]:
        each = latency(sum(p["seconds"] for p in r["parts"] if p["kind"] in ("decode", "slowed")) / r["decode_steps"])
        alone = latency(r["decode_alone"] / r["decode_steps"])
        said = f"{r['decode_steps']} steps of {each} with {r['decode_rows']:.3g} requests each"
        facts.append(("decode", said + (f"; alone they would take {alone}" if r["decode_rows"] > 1.05 else "")))
    if facts:
        yield ()
    for label, text in facts:
        yield from _wrapped(label, text, width)


def _chunks(chunks: list[Mapping[str, Any]]) -> str:
    shown = [f"{c['tokens']}{' again' if c['again'] else ''} in {latency(c['seconds'])}" for c in chunks]
    if len(shown) > 6:
        shown = [*shown[:3], f"{len(shown) - 5} more", *shown[-2:]]
    return f"{sum(c['tokens'] for c in chunks)} tokens: {', '.join(shown)}"


def _advice(r: Mapping[str, Any], width: int) -> Iterator[Line]:
    if not r["advice"]:
        return
    yield ()
    yield (("what would have helped most", "bold"),)
    for number, a in enumerate(r["advice"], 1):
        most = "up to " if a["at_most"] else "about "
        yield (
            f"{number}. saves {most}",
            (f"{latency(a['saves'])} ({a['share']:.0%})", "bold green"),
            "  ",
            (a["flag"], "bold cyan"),
        )
        for line in textwrap.wrap(a["change"], width - 3):
            yield (f"   {line}",)


def _wrapped(label: str, text: str, width: int) -> Iterator[Line]:
    lines = textwrap.wrap(text, width - LABEL - 2) or [""]
    for i, line in enumerate(lines):
        yield ((f"{label if i == 0 else '':{LABEL}} ", "bold"), line)
