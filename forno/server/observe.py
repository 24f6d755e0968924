"""``/explain``, ``/explain/{request_id}`` and ``/debug/state``: what the recorder knows, as JSON, worked out off the loop."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from forno import __version__
from forno.errors import RequestError
from forno.observe.advice import Settings, advise
from forno.observe.explain import ENGINE, Predict, by_tokens, explain
from forno.observe.explanation import Explanation
from forno.observe.record import RequestRecord, Shortage, StepRecord
from forno.observe.words import MEANS, of_lookup
from forno.server import observe_wire as wire
from forno.server.endpoint import Call
from forno.server.errors import HttpError
from forno.server.limits import App
from forno.server.respond import Body, Deferred, encoded
from forno.server.serving import Serving

RECENT, MOST_RECENT = 20, 200
"""Requests that are listed, unless the query says otherwise, and at most."""
STEPS, MOST_STEPS = 60, 2000
"""The same of steps in ``/debug/state``."""
NAMED = 8
"""Requests named as sharing in a part."""
ALIKE = 4
"""Ids that are named where a beginning is not enough."""
MOST_SEGMENTED = 16
"""Answers of one response whose segments are told at once: those of thousands would not fit into memory."""
RATE_SECONDS = 3.0
"""What rates are taken over."""


async def explanation(serving: Serving, body: None, call: Call) -> App:
    """The requests that a response is made of, of many the first."""
    segments = call.number("segments", 0, 0, 1) == 1
    id, records = _meant(serving, call.path["request_id"])
    if segments and len(records) > MOST_SEGMENTED:
        message = f"{id!r} has {len(records)} answers: ask for the segments of one of them, such as {records[0].id!r}"
        raise RequestError(message, "segments")
    return _read(serving, _explanations, serving, id, records, segments)


async def recent(serving: Serving, body: None, call: Call) -> App:
    """The latest requests, live ones first, each with its largest part."""
    return _read(serving, _recent, serving, call.number("count", RECENT, 1, MOST_RECENT))


async def state(serving: Serving, body: None, call: Call) -> App:
    """What ``forno top`` shows."""
    return _read(serving, _state, serving, call.number("steps", STEPS, 0, MOST_STEPS))


def _read(serving: Serving, function: Callable[..., Any], *args: Any) -> App:
    """Answers with what ``function(*args)`` reads of the records; a client who leaves before its turn costs nothing."""

    async def work() -> App:
        return Body(await serving.read(lambda: encoded(function(*args))))

    return Deferred(work())


# -- explanations -----------------------------------------------------------------------------------------------


def _meant(serving: Serving, id: str) -> tuple[str, list[RequestRecord]]:
    """The response with this id, or else the only one whose id begins so: long ids are shown cut."""
    recorder = serving.engine.recorder
    if records := recorder.answers(id):
        return id, records
    alike = recorder.beginning(id) if id else []
    if len(alike) == 1 and (records := recorder.answers(alike[0])):
        return alike[0], records
    if len(alike) > 1:
        named = ", ".join(alike[-1 : -ALIKE - 1 : -1]) + (" ..." if len(alike) > ALIKE else "")
        message = f"{len(alike)} requests begin with {id!r}: say more of the id; the latest are {named}"
        raise HttpError(400, message, "invalid_request_error", "request_id", "ambiguous_request")
    raise HttpError(404, _why_unknown(serving, id), "invalid_request_error", "request_id", "request_not_found")


def _why_unknown(serving: Serving, id: str) -> str:
    recorder = serving.engine.recorder
    if not recorder.recording:
        return "this server remembers no requests: it was started with --no-record"
    over = recorder.finished(MOST_RECENT * 100)
    if over and len(over) >= recorder.max_requests:
        return (
            f"no request {id!r} among the last {len(over)}: it never came here, or it was forgotten; the oldest that is "
            f"remembered came {serving.engine.clock() - over[0].arrival:.0f} s ago"
        )
    where = "every response has its id in `id`, and an error in the header x-request-id"
    return f"no request {id!r} came here since the server's start; {where}"


def _explanations(serving: Serving, id: str, records: Sequence[RequestRecord], segments: bool) -> wire.Explanations:
    found = [_explained(serving, e, segments) for e in explain_records(serving, records[:MOST_RECENT])]
    return wire.Explanations(id, serving.model, found, len(records))


def explain_record(serving: Serving, record: RequestRecord) -> Explanation:
    """The explanation of one request, up to now if it still runs."""
    return next(explain_records(serving, [record]))


def explain_records(serving: Serving, records: Sequence[RequestRecord]) -> Iterator[Explanation]:
    """The same of several. Their steps are read once: that is half of the work where many waited for each other."""
    recorder, now = serving.engine.recorder, serving.engine.clock()
    dones = [record.finished or now for record in records]
    steps = recorder.during(min(r.arrival for r in records), max(dones)) if records else []
    starts, ends, horizon = [s.start for s in steps], [s.end for s in steps], recorder.horizon
    idle = Shortage.BATCH if serving.engine.engine.scheduler.config.batching == "dynamic" else ENGINE
    for record, done in zip(records, dones, strict=True):
        of_its_time = steps[bisect_right(ends, record.arrival) : bisect_left(starts, done)]
        yield explain(record, of_its_time, horizon, now, predictor(serving), idle)


def predictor(serving: Serving) -> Predict:
    """The cost model of this server's program."""
    return by_tokens if serving.attribution is None else serving.attribution.roofline.predict


def _settings(serving: Serving) -> Settings:
    engine = serving.engine.engine
    cache = engine.scheduler.cache
    return Settings(
        engine.scheduler.config, cache.enable_prefix_caching, cache.capacity, int(getattr(engine.runner, "kv_bytes", 0))
    )


def _explained(serving: Serving, found: Explanation, segments: bool) -> wire.Explained:
    record = found.record
    whole = found.seconds or 1.0
    first = record.first_sent or record.first_token
    parts = sorted(found.parts.values(), key=lambda part: part.seconds, reverse=True)
    return wire.Explained(
        id=record.id,
        state=_state_of(record),
        reason=record.reason,
        error=record.error,
        start=found.start,
        seconds=found.seconds,
        age=serving.engine.clock() - found.start,
        ttft=first - found.start if first and record.first_token else None,
        prompt_tokens=record.num_prompt,
        cached_tokens=record.num_cached,
        generated_tokens=record.num_generated,
        max_tokens=record.max_tokens,
        preemptions=record.num_preemptions,
        ahead=record.ahead,
        running=record.running,
        parts=[wire.PartOut(p.kind, p.seconds, p.seconds / whole, MEANS[p.kind], _largest(p.by)) for p in parts],
        phases=[wire.PhaseOut(s.phase, s.start - found.start, s.end - found.start) for s in found.phases()],
        waited_for=found.waited_for,
        chunks=found.chunks,
        decode_steps=found.decode_steps,
        decode_rows=found.decode_rows,
        decode_alone=found.decode_alone,
        lookup=_lookup(record),
        advice=[
            wire.AdviceOut(a.change, a.saves, a.saves / whole, a.flag, a.at_most)
            for a in advise(found, _settings(serving), predictor(serving))
        ],
        segments=_segments(found) if segments else None,
    )


def _segments(found: Explanation) -> list[wire.SegmentOut]:
    return [wire.SegmentOut(s.kind, s.start - found.start, s.end - found.start, s.step) for s in found.segments]


def _lookup(record: RequestRecord) -> wire.LookupOut | None:
    found = record.lookup
    return (
        None
        if found is None
        else wire.LookupOut(found.matched, found.reason, found.position, of_lookup(found, record.num_prompt))
    )


def _largest(by: dict[str, float]) -> dict[str, float]:
    return dict(sorted(by.items(), key=lambda item: item[1], reverse=True)[:NAMED])


def _state_of(record: RequestRecord) -> str:
    if record.finished:
        return "finished" if record.serial else "refused"
    held = len(record.resumed) + bool(record.scheduled) > len(record.preempted)
    return "running" if held else "waiting"


def _recent(serving: Serving, count: int) -> wire.Recent:
    recorder, now = serving.engine.recorder, serving.engine.clock()
    records = [*recorder.finished(count), *recorder.live()][-count:]
    found = []
    for explained in explain_records(serving, records[::-1]):
        record = explained.record
        largest = max(explained.parts.values(), key=lambda p: p.seconds, default=None)
        found.append(
            wire.RecentRequest(
                id=record.id,
                state=_state_of(record),
                reason=record.reason,
                age=now - explained.start,
                seconds=explained.seconds,
                prompt_tokens=record.num_prompt,
                generated_tokens=record.num_generated,
                slowest="" if largest is None else largest.kind,
                slowest_seconds=0.0 if largest is None else largest.seconds,
            )
        )
    return wire.Recent(serving.model, found)


# -- state ------------------------------------------------------------------------------------------------------


def _state(serving: Serving, count: int) -> wire.DebugState:
    engine, recorder = serving.engine.engine, serving.engine.recorder
    stats, cache = serving.engine.stats(), engine.scheduler.cache
    steps = recorder.steps(last=max(count, 1))
    last = steps[-1] if steps else None
    attribution = serving.attribution
    return wire.DebugState(
        model=serving.model,
        version=__version__,
        uptime=max(0.0, time.time() - serving.created),
        running=stats.running,
        waiting=stats.waiting,
        kv_usage=stats.kv_usage,
        kv_waste=1.0 - last.kv_used / last.kv_reserved if last and last.kv_reserved and stats.running else None,
        prefix_hit_share=cache.hit_tokens / cache.queried_tokens if cache.queried_tokens else None,
        ceilings=asdict(attribution.roofline.ceiling) if attribution else {},
        seconds_by_label=dict(attribution.advance().seconds) if attribution else {},
        steps=_steps(serving, steps) if count else [],
        requests=_live(serving, last),
        rates=_rates(serving),
    )


def _steps(serving: Serving, steps: list[StepRecord]) -> list[wire.StepOut]:
    found = [_step(step) for step in steps]
    if serving.attribution is not None:
        for out, analysis in zip(found, serving.attribution.roofline.analyse(steps), strict=True):
            out.label, out.share, out.predicted = analysis.label, analysis.share, analysis.predicted
            out.intensity, out.flops = analysis.intensity, analysis.flops
            out.bytes = analysis.weight_bytes + analysis.kv_bytes
    return found


def _step(step: StepRecord) -> wire.StepOut:
    return wire.StepOut(
        number=step.number,
        start=step.start,
        seconds=step.seconds,
        wall=step.end - step.start,
        rows=len(step.tokens),
        tokens=sum(step.tokens),
        prompt_tokens=step.prompt_tokens,
    )


def _live(serving: Serving, last: StepRecord | None) -> list[wire.LiveRequest]:
    recorder, now = serving.engine.recorder, serving.engine.clock()
    found = []
    for sequence in serving.engine.engine.sequences():
        record = recorder.request(sequence.request.id) or RequestRecord(sequence.request.id, 0, 0, 0)
        state = _state_of(record)
        lacking = None
        if state == "waiting":
            lacking = last.shortage if last else None
            lacking = Shortage.PREFIX if record.parked and not record.scheduled else lacking
        found.append(
            wire.LiveRequest(
                id=sequence.request.id,
                state=state,
                prompt=sequence.num_prompt,
                cached=sequence.num_cached,
                generated=sequence.num_generated,
                max_tokens=sequence.request.sampling.max_tokens,
                age=now - sequence.request.arrival,
                waits_for=lacking,
            )
        )
    return found


def _rates(serving: Serving) -> wire.Rates:
    recorder, now = serving.engine.recorder, serving.engine.clock()
    steps = [s for s in recorder.during(now - RATE_SECONDS, now) if s.end > now - RATE_SECONDS]
    ended = [r for r in recorder.finished(MOST_RECENT * 10) if r.finished > now - RATE_SECONDS and r.serial]
    return wire.Rates(
        output_tokens_per_s=sum(s.outputs - s.num_drafts for s in steps) / RATE_SECONDS,
        prompt_tokens_per_s=sum(s.prompt_tokens for s in steps) / RATE_SECONDS,
        requests_per_s=len(ended) / RATE_SECONDS,
    )
