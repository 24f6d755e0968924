"""The last steps as a trace for Perfetto (https://ui.perfetto.dev) or chrome://tracing. It knows records, no engine.

Chrome's Trace Event Format, JSON object form: complete events (``X``), counters (``C``), instants (``i``) and names (``M``);
times are microseconds since the first step. Whatever began earlier is cut there. Names hold ids and lengths, never text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forno.observe.record import RequestRecord, StepRecord

if TYPE_CHECKING:
    from forno.observe.roofline import StepAnalysis

ENGINE, REQUESTS = 1, 2
"""Process numbers of the two groups of tracks."""
STEPS = 1
"""The engine's one track: a step, and nested in it what it spent its time on."""
Event = dict[str, Any]


@dataclass(slots=True)
class Part:
    """A stretch of one request's way."""

    name: str
    start: float
    end: float
    args: dict[str, Any]


def chrome_trace(
    steps: Sequence[StepRecord],
    requests: Iterable[RequestRecord],
    analyses: Sequence[StepAnalysis] = (),
    **about: Any,
) -> dict[str, Any]:
    """The trace as a JSON-able object. ``steps`` are consecutive, oldest first; ``requests`` may hold any others too.

    ``analyses`` are one per step, or none; ``about`` is shown with the trace: the model, the version.
    """
    events = [_name("process_name", ENGINE, 0, "engine"), _name("process_name", REQUESTS, 0, "requests")]
    if steps:
        window = _Window(steps[0].start, steps[-1].end)
        events.append(_name("thread_name", ENGINE, STEPS, "steps"))
        for i, step in enumerate(steps):
            events += _step_events(window, step, analyses[i] if analyses else None)
        events += _request_events(window, steps, requests)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


class _Window:
    """Turns the engine's seconds into the trace's microseconds, within the steps that it covers."""

    def __init__(self, start: float, end: float) -> None:
        self.start, self.end = start, end

    def at(self, time: float) -> float:
        return round((min(max(time, self.start), self.end) - self.start) * 1e6, 3)

    def slice(self, name: str, start: float, end: float, pid: int, tid: int, args: dict[str, Any]) -> Event:
        begin = self.at(start)
        # The end is rounded before it is subtracted: so what ends together does, and nested slices stay nested.
        duration = round(max(self.at(end) - begin, 0.0), 3)
        return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": begin, "dur": duration, "args": args}

    def counter(self, name: str, time: float, values: Mapping[str, float]) -> Event:
        return {"ph": "C", "name": name, "pid": ENGINE, "tid": 0, "ts": self.at(time), "args": values}

    def instant(self, name: str, time: float, tid: int, args: dict[str, Any]) -> Event:
        return {"ph": "i", "s": "t", "name": name, "pid": REQUESTS, "tid": tid, "ts": self.at(time), "args": args}


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _step_events(window: _Window, step: StepRecord, analysis: StepAnalysis | None) -> Iterator[Event]:
    prompt, total = step.prompt_tokens, sum(step.tokens)
    args: dict[str, Any] = {
        "step": step.number,
        "requests": len(step.requests),
        "prompt_tokens": prompt,
        "other_tokens": total - prompt,
    }
    if step.shortage is not None:
        args["first_waiting_lacks"] = str(step.shortage)
    if analysis is not None:
        share, predicted = round(analysis.share, 4), round(analysis.predicted * 1e3, 3)
        args |= {"waited_for": str(analysis.label), "roofline_share": share, "predicted_ms": predicted}
        yield window.counter("share of the roofline", step.planned, {"share": share})
    yield window.slice("step", step.start, step.end, ENGINE, STEPS, args)
    yield window.slice("schedule", step.start, step.planned, ENGINE, STEPS, {})
    yield window.slice("run", step.planned, step.computed, ENGINE, STEPS, {"cpu_ms": round(step.cpu_seconds * 1e3, 3)})
    yield window.slice("outputs", step.computed, step.end, ENGINE, STEPS, {"outputs": step.outputs})
    yield window.counter("requests", step.planned, {"running": len(step.requests), "waiting": step.waiting})
    yield window.counter("tokens of the step", step.planned, {"prompt": prompt, "other": total - prompt})
    kv = {"used": step.kv_used, "reserved in vain": max(step.kv_reserved - step.kv_used, 0)}
    yield window.counter("KV token slots", step.planned, kv)


# -- requests -----------------------------------------------------------------------------------------------------


def _request_events(window: _Window, steps: Sequence[StepRecord], requests: Iterable[RequestRecord]) -> Iterator[Event]:
    known = {request.serial: request for step in steps for request in step.requests}
    known |= {request.serial: request for request in requests if request.serial and _touches(window, request)}
    parts = _parts_of_steps(steps)
    free: list[float] = []  # per lane, when its last request is over
    for serial in sorted(known):
        request = known[serial]
        start, end = _span(window, request, parts.get(serial, []))
        lane = next((i for i, busy_until in enumerate(free) if busy_until <= start), len(free))
        if lane == len(free):
            free.append(end)
            yield _name("thread_name", REQUESTS, lane + 1, f"lane {lane + 1}")
        free[lane] = end
        yield window.slice(request.id, start, end, REQUESTS, lane + 1, _about(request))
        for part in _in_a_row([*_parts_around(window, request), *parts.get(serial, ())], start, end):
            if part.end > window.start:
                yield window.slice(part.name, part.start, part.end, REQUESTS, lane + 1, part.args)
        for time, tokens in request.preempted:
            if window.start <= time <= window.end:
                yield window.instant("preempted", time, lane + 1, {"computed_tokens_lost": tokens})


def _touches(window: _Window, request: RequestRecord) -> bool:
    return request.arrival <= window.end and (not request.finished or request.finished >= window.start)


def _span(window: _Window, request: RequestRecord, parts: list[Part]) -> tuple[float, float]:
    """When a request was here, as far as the trace shows."""
    if not request.arrival:  # its record was forgotten: the steps are all that is known
        return parts[0].start, parts[-1].end
    end = max(request.sent, request.finished) if request.finished else window.end
    return request.received or request.arrival, min(max(end, request.arrival), window.end)


def _in_a_row(parts: list[Part], start: float, end: float) -> Iterator[Part]:
    """In order of time and within a request's span, each over where the next begins: a step begins before its plan, in which
    a wait ends."""
    parts.sort(key=lambda part: part.start)
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        limit = end if following is None else min(following.start, end)
        if part.start < limit:
            yield Part(part.name, max(part.start, start), min(part.end, limit), part.args)


def _about(request: RequestRecord) -> dict[str, Any]:
    about = {
        "prompt_tokens": request.num_prompt,
        "cached_tokens": request.num_cached,
        "generated_tokens": request.num_generated,
        "max_tokens": request.max_tokens,
        "finish_reason": request.reason,
        "slo_class": request.slo_class,
    }
    return {key: value for key, value in about.items() if value != ""}


def _parts_around(window: _Window, request: RequestRecord) -> Iterator[Part]:
    """What happened to a request before its first step and after its last, and while it had no blocks."""
    if not request.arrival:
        return
    if request.received and request.tokenized:
        yield Part("tokenize", request.received, request.tokenized, {"prompt_tokens": request.num_prompt})
    until = request.scheduled or request.finished or window.end
    yield Part("queued", request.arrival, until, {"ahead": request.ahead, "running": request.running})
    for time, _ in request.preempted:
        resumed = next((at for at, _ in request.resumed if at >= time), request.finished or window.end)
        yield Part("preempted", time, resumed, {})
    if request.sent > request.finished > 0:
        yield Part("send", request.finished, request.sent, {})


def _parts_of_steps(steps: Sequence[StepRecord]) -> dict[int, list[Part]]:
    """By serial, what a request had computed: each chunk of its prompt, and decodes of consecutive steps as one."""
    parts: dict[int, list[Part]] = {}
    reached: dict[int, int] = {}  # by serial, positions computed so far: what is below was computed before
    decoded_in: dict[int, int] = {}
    for step in steps:
        for request, start, tokens in step.rows():
            mine = parts.setdefault(request.serial, [])
            before = reached.get(request.serial, 0)
            reached[request.serial] = max(before, start + tokens)
            if start < request.num_prompt or start + 1 < before:
                name = "recompute" if start + 1 < before else "prefill"
                mine.append(
                    Part(f"{name} {start}-{start + tokens}", step.start, step.end, {"step": step.number, "tokens": tokens})
                )
            elif decoded_in.get(request.serial) == step.number - 1:
                mine[-1].end = step.end
                mine[-1].args["steps"] += 1
                mine[-1].args["tokens"] += tokens
                decoded_in[request.serial] = step.number
            else:
                mine.append(Part("decode", step.start, step.end, {"steps": 1, "tokens": tokens}))
                decoded_in[request.serial] = step.number
    return parts
