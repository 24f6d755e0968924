"""Which status each error becomes."""

from __future__ import annotations

import logging

import msgspec
import pytest

from forno import errors
from forno.server.errors import BodyTooLargeError, HttpError, bad_json, describe


def every_error() -> list[type[errors.FornoError]]:
    found, todo = [], [errors.FornoError]
    while todo:
        cls = todo.pop()
        found.append(cls)
        todo += cls.__subclasses__()
    return found


@pytest.mark.parametrize("cls", every_error())
def test_a_request_s_own_fault_is_never_a_500(cls: type[errors.FornoError]) -> None:
    status, body, _ = describe(cls("what happened"))
    assert body.message == "what happened"
    assert status < 500 or not issubclass(cls, errors.RequestError | errors.QueueFullError | errors.DeadlineError)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.RequestError("x", "field"), 400),
        (errors.PromptTooLongError("x"), 400),
        (errors.ConstraintError("x"), 400),
        (RecursionError(), 400),
        (errors.DeadlineError("x"), 408),
        (BodyTooLargeError(5), 413),
        (errors.QueueFullError("x", 2.6), 429),
        (errors.EngineError("x"), 500),
        (errors.DrainingError("x"), 503),
        (HttpError(404, "x", "y"), 404),
    ],
)
def test_statuses(error: Exception, status: int) -> None:
    found, body, headers = describe(error)
    assert found == status
    assert body.type
    assert headers.get("retry-after") == ("3" if status == 429 else None)
    assert body.param == getattr(error, "param", None)


def test_what_nobody_foresaw_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "forno.server"):
        status, body, _ = describe(ValueError("a secret"))
    assert status == 500
    assert "secret" not in body.message
    assert "a secret" in caplog.text


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Object contains unknown field `best_of`", "best_of"),
        ("Object contains unknown field `x` - at `$.messages[0]`", "x"),
        ("Object missing required field `messages`", "messages"),
        ("Expected `int`, got `str` - at `$.n`", "n"),
        ("Expected `int`, got `str` - at `key` in `$.logit_bias`", "logit_bias"),
        ("Expected `object`, got `array`", None),
    ],
)
def test_the_field_is_named(message: str, param: str | None) -> None:
    error = bad_json(msgspec.ValidationError(message))
    assert (error.status, error.body.param) == (400, param)
