"""``Serving``: what every handler is given. Built once at start, never changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from forno.config import ServerConfig
from forno.engine.async_engine import AsyncEngine
from forno.server.errors import HttpError

if TYPE_CHECKING:
    from forno.observe.attribution import Attribution
    from forno.server.engine_metrics import EngineMetrics
    from forno.server.spans import SpanSender
    from forno.text import ChatTemplate, ConstraintCompiler, Tokenizer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Serving:
    """An engine and the text side of its model."""

    engine: AsyncEngine
    tokenizer: Tokenizer
    template: ChatTemplate
    constraints: ConstraintCompiler
    metrics: EngineMetrics
    model: str
    """The name clients use."""
    created: int
    """Seconds since the epoch, for ``/v1/models``."""
    config: ServerConfig = field(default_factory=ServerConfig)
    scheduling_policy: str = "fcfs"
    """Whether ``priority`` of a request means something."""
    spans: SpanSender | None = None
    """Who is told of requests that are over, if spans are sent."""
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    """``temperature``, ``top_p``, ``top_k``, ... where the model's generation config sets them."""
    attribution: Attribution | None = None
    """What the engine's steps wait for; None where no steps are recorded."""
    reader: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "forno-reader"))
    """Where the records are read for whoever asks: one thread, so that askers wait for each other, and neither streams nor the
    threads that tokenize wait for more than one of them."""

    async def read(self, function: Callable[..., T], *args: Any) -> T:
        """``function(*args)``, which reads the records, on ``reader``. Cancelled before its turn, it is never called."""
        return await asyncio.get_running_loop().run_in_executor(self.reader, partial(function, *args))

    @property
    def max_model_len(self) -> int:
        return self.engine.max_model_len

    def check_model(self, name: str | None) -> None:
        """404 unless ``name`` is the served model."""
        if name is not None and name != self.model:
            message = f"the model {name!r} is not served here; this server serves {self.model!r}"
            raise HttpError(404, message, "invalid_request_error", "model", "model_not_found")
