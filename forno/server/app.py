"""The HTTP application: the endpoint table, and what surrounds every handler. It knows no engine but ``Serving``'s."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route

from forno.errors import QueueFullError, RequestError
from forno.server import misc, observe, observe_wire, openapi, wire
from forno.server.cache_debug import CacheState, cache_state
from forno.server.chat import chat
from forno.server.completions import completions
from forno.server.decode import BodyDecoder
from forno.server.endpoint import Endpoint, call_of
from forno.server.errors import describe
from forno.server.limits import App, LimitBody, Receive, RequireKey, Scope, Send
from forno.server.respond import Body, json
from forno.server.serving import Serving
from forno.server.trace import MOST_STEPS, STEPS, trace
from forno.server.visit import BEGUN, Visit
from forno.server.wire import ErrorResponse

GENERATE = (400, 401, 404, 408, 413, 429, 500, 503)
ENDPOINTS = (
    Endpoint(
        "POST", "/v1/chat/completions", "Answer a conversation", chat, wire.ChatRequest, wire.ChatCompletion, GENERATE, True
    ),
    Endpoint(
        "POST", "/v1/completions", "Continue a text", completions, wire.CompletionRequest, wire.Completion, GENERATE, True
    ),
    Endpoint("GET", "/v1/models", "List the served model", misc.models, None, wire.ModelList, (401,)),
    Endpoint(
        "POST", "/tokenize", "Text to tokens", misc.tokenize, wire.TokenizeBody, wire.TokenizeResponse, (400, 401, 404, 413)
    ),
    Endpoint(
        "POST",
        "/detokenize",
        "Tokens to text",
        misc.detokenize,
        wire.DetokenizeRequest,
        wire.DetokenizeResponse,
        (400, 401, 404, 413),
    ),
    Endpoint(
        "GET",
        "/tokenizer_info",
        "The special tokens and the chat template",
        misc.tokenizer_info,
        None,
        wire.TokenizerInfo,
        (401,),
    ),
    Endpoint("GET", "/health", "Whether requests are taken", misc.health, None, wire.Health, (503,)),
    Endpoint("GET", "/version", "The server's version", misc.version, None, wire.Version),
    Endpoint("GET", "/metrics", "Prometheus metrics", misc.metrics),
    Endpoint(
        "GET",
        "/explain",
        "The latest requests and their slowest parts",
        observe.recent,
        None,
        observe_wire.Recent,
        (400, 401),
        query={"count": {"type": "integer", "minimum": 1, "maximum": observe.MOST_RECENT, "default": observe.RECENT}},
    ),
    Endpoint(
        "GET",
        "/explain/{request_id}",
        "Where the time of a request went, and what would have helped",
        observe.explanation,
        None,
        observe_wire.Explanations,
        (400, 401, 404),
        query={"segments": {"type": "integer", "minimum": 0, "maximum": 1, "default": 0}},
    ),
    Endpoint(
        "GET",
        "/debug/state",
        "What the server does now: steps, requests, rates",
        observe.state,
        None,
        observe_wire.DebugState,
        (400, 401),
        query={"steps": {"type": "integer", "minimum": 0, "maximum": observe.MOST_STEPS, "default": observe.STEPS}},
    ),
    Endpoint(
        "GET",
        "/debug/trace",
        "The last steps as a trace for Perfetto",
        trace,
        None,
        dict[str, Any],
        (400, 401, 404),
        query={"steps": {"type": "integer", "minimum": 1, "maximum": MOST_STEPS, "default": STEPS}},
    ),
    Endpoint("GET", "/debug/cache", "What the KV cache found, missed and wasted", cache_state, None, CacheState, (401,)),
)


def build_app(serving: Serving, keys: tuple[bytes, ...] = ()) -> App:
    """The ASGI application. ``keys`` empty: no key is asked for."""

    @cache  # made when first asked for: most servers never are
    def document() -> dict[str, Any]:
        return openapi.document(ENDPOINTS, serving.tokenizer.vocab_size)

    async def docs(request: Request) -> App:
        return Body(openapi.page(document()).encode(), media="text/html; charset=utf-8")

    async def schema(request: Request) -> App:
        return json(document())

    routes = [Route(_route(e.path), Handler(serving, e), methods=[e.method]) for e in ENDPOINTS]
    routes += [Route("/docs", docs), Route("/openapi.json", schema)]
    handlers: dict[Any, Any] = {404: _not_found, 405: _not_allowed}
    app: App = Starlette(routes=routes, exception_handlers=handlers)
    return RequireKey(LimitBody(app, serving.config.max_body_bytes), keys)


class Handler:
    """Runs one endpoint as an ASGI application: decode, call, answer; every error becomes OpenAI's error object."""

    def __init__(self, serving: Serving, endpoint: Endpoint) -> None:
        self.serving, self.endpoint = serving, endpoint
        self.decoder = None if endpoint.body is None else BodyDecoder(endpoint.body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        engine = self.serving.engine
        visit = Visit(engine.recorder, engine.clock, scope.get(BEGUN, 0.0))
        watched = visit.sending(send)
        try:
            raw = b"" if self.decoder is None else await Request(scope, receive).body()
            visit.received = engine.clock()
            body = None if self.decoder is None else self.decoder.decode(raw)
            response = await self.endpoint.handler(self.serving, body, call_of(scope, len(raw), visit))
            await response(scope, receive, watched)
        except ClientDisconnect:
            return
        except Exception as error:
            if visit.started:
                raise
            visit.fail(error)
            await self._fail(error, scope, visit)(scope, receive, watched)
        finally:
            visit.close()
            if self.serving.spans is not None:
                self.serving.spans.finish(self.endpoint.path, visit.id, visit.records, scope["headers"])

    def _fail(self, error: Exception, scope: Scope, visit: Visit) -> Body:
        status, body, headers = describe(error)
        if visit.id.isascii() and visit.id.isprintable() and visit.id:  # what `forno explain` is to be asked for
            headers["x-request-id"] = visit.id
        if isinstance(error, RequestError | QueueFullError):
            self.serving.metrics.reject(type(error).__name__)
        if isinstance(error, QueueFullError):
            self.serving.metrics.goodput.refuse(call_of(scope, 0).slo_class)
        return json(ErrorResponse(error=body), status, headers)


def _route(path: str) -> str:
    """A parameter goes to the path's end: ids may hold slashes."""
    return re.sub(r"\{(\w+)\}$", r"{\1:path}", path)


async def _not_found(request: Request, error: Exception) -> App:
    return _refuse(404, f"no such path: {request.url.path}; see /docs")


async def _not_allowed(request: Request, error: Exception) -> App:
    message = f"{request.method} is not offered at {request.url.path}; see /docs"
    return _refuse(405, message, getattr(error, "headers", None) or {})


def _refuse(status: int, message: str, headers: Mapping[str, str] = {}) -> Body:
    return json(ErrorResponse(error=wire.ErrorBody(message=message, type="invalid_request_error")), status, headers)
