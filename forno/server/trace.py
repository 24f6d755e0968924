"""``GET /debug/trace``: the last steps as a file for https://ui.perfetto.dev."""

from __future__ import annotations

import msgspec

from forno import __version__
from forno.observe.chrome_trace import chrome_trace
from forno.observe.recorder import MAX_STEPS, Recorder
from forno.server.endpoint import Call
from forno.server.errors import HttpError
from forno.server.limits import App
from forno.server.respond import Body, Deferred
from forno.server.serving import Serving

STEPS = 1000
"""How many steps are exported unless the query says otherwise,"""
MOST_STEPS = MAX_STEPS
"""and at most: all that a recorder remembers."""


async def trace(serving: Serving, body: None, call: Call) -> App:
    recorder = serving.engine.engine.recorder
    if not isinstance(recorder, Recorder):
        message = "this server was started with --no-record: it remembers no steps"
        raise HttpError(404, message, "invalid_request_error", code="not_recorded")
    count = call.number("steps", min(STEPS, recorder.max_steps), 1, recorder.max_steps)
    return Deferred(_read(serving, recorder, count))


async def _read(serving: Serving, recorder: Recorder, count: int) -> App:
    content = await serving.read(_encoded, serving, recorder, count)
    return Body(content, headers={"content-disposition": 'attachment; filename="forno-trace.json"'})


def _encoded(serving: Serving, recorder: Recorder, count: int) -> bytes:
    steps, requests = recorder.steps(last=count), [*recorder.finished(recorder.max_requests), *recorder.live()]
    analyses = serving.attribution.roofline.analyse(steps) if serving.attribution is not None else ()
    return msgspec.json.encode(chrome_trace(steps, requests, analyses, model=serving.model, version=f"forno {__version__}"))
