"""The exception tree. Every error a user can cause is a ``FornoError`` whose message says
what happened, why, and what to do next. It knows nothing of HTTP: ``server`` maps kinds to statuses."""

from __future__ import annotations


class FornoError(Exception):
    """Base of every error that forno raises on purpose."""


class ConfigError(FornoError):
    """An option or a combination of options that cannot be honoured."""


class ModelError(FornoError):
    """The model cannot be found, fetched or understood."""


class CheckpointError(ModelError):
    """A model file is malformed: truncated, inconsistent, or with absurd shapes."""


class UnsupportedError(ModelError):
    """A well-formed model uses something forno does not implement; the message lists what it does."""


class DownloadError(ModelError):
    """A model could not be fetched (offline, not found, checksum mismatch)."""


class RequestError(FornoError):
    """A request is invalid. ``param`` names the offending field, if one does."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLongError(RequestError):
    """Prompt plus requested tokens exceed the model's or the cache's capacity; the message names both."""


class TemplateError(RequestError):
    """A chat template failed, looped, or did something the sandbox forbids."""


class ConstraintError(RequestError):
    """A JSON schema, regex or grammar that cannot be enforced exactly."""


class QueueFullError(FornoError):
    """Admission limits are reached. ``retry_after`` is in seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineError(FornoError):
    """The request's own deadline passed before it finished. Never reported as ``finish_reason: length``."""


class DrainingError(FornoError):
    """The server is shutting down and takes no new requests."""


class NumericsError(FornoError):
    """A step produced NaN or infinity where a finite value is required."""


class EngineError(FornoError):
    """The engine failed inside a step; the message names the step and the cause."""


class ResultError(FornoError):
    """A benchmark's result file is missing, malformed or of another version; or two of them have nothing to compare."""


class UnreachableError(FornoError):
    """A server gave a tool no answer, refused to, or gave one that cannot be read."""
