"""Which HTTP status an error becomes, in OpenAI's error object. A request's own fault is never a 500."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from forno import errors
from forno.server.wire import ErrorBody, ErrorResponse

log = logging.getLogger("forno.server")

STATUSES: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (errors.PromptTooLongError, 400, "invalid_request_error", "context_length_exceeded"),
    (errors.RequestError, 400, "invalid_request_error", None),
    (errors.QueueFullError, 429, "rate_limit_error", "queue_full"),
    (errors.DeadlineError, 408, "timeout_error", "deadline_exceeded"),
    (errors.DrainingError, 503, "service_unavailable_error", "draining"),
    (errors.FornoError, 500, "server_error", None),
)
"""Most specific first: class, status, OpenAI type, code."""


class HttpError(Exception):
    """An error that belongs to HTTP alone: a wrong key, an unknown model, a body too large."""

    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, status: int, message: str, kind: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(message=message, type=kind, param=param, code=code)


class BodyTooLargeError(HttpError):
    """The body exceeds ``limit`` bytes. The connection is closed: what is left of the body is not read."""

    headers: ClassVar[Mapping[str, str]] = {"connection": "close"}

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the body exceeds {limit} bytes (--max-body-bytes)", "invalid_request_error")


def describe(error: Exception) -> tuple[int, ErrorBody, dict[str, str]]:
    """Status, body and extra headers for an error. One that nobody foresaw is logged here, and its text kept from clients."""
    if isinstance(error, HttpError):
        return error.status, error.body, dict(error.headers)
    headers = {}
    if isinstance(error, errors.QueueFullError):
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    for cls, status, kind, code in STATUSES:
        if isinstance(error, cls):
            param = getattr(error, "param", None)
            return status, ErrorBody(message=str(error), type=kind, param=param, code=code), headers
    if isinstance(error, RecursionError):  # JSON that the decoder took, but too deep for a schema check or a template
        return 400, ErrorBody(message="the request is nested too deeply", type="invalid_request_error"), headers
    log.error("unexpected error", exc_info=error)
    return 500, ErrorBody(message="internal error; the server's log has the details", type="server_error"), headers


def encode(body: ErrorBody) -> bytes:
    return msgspec.json.encode(ErrorResponse(error=body))


def bad_json(error: Exception) -> HttpError:
    """A 400 for a body that does not decode, naming the field if the decoder did."""
    message = str(error) or type(error).__name__
    unknown = re.search(r"unknown field `([^`]+)`", message)
    path = re.search(r"`\$\.?([^`]*)`", message) or re.search(r"required field `([^`]+)`", message)
    param = unknown.group(1) if unknown else path.group(1) if path else None
    if unknown:
        message = f"unknown field {param!r}: forno refuses what it does not implement rather than ignore it"
    return HttpError(400, message, "invalid_request_error", param or None)
