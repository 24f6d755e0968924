"""The bridge between an event loop and the engine, which runs in one thread of its own.

Commands (add, abort) go into an inbox that the engine's thread empties between steps; outputs come back with one call
into the loop per step, for all requests together. Idle, the thread sleeps on a condition and uses no CPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from forno.engine.cache_report import CacheReport, cache_report
from forno.engine.engine import Engine
from forno.engine.stats import EngineStats, FinishedRequest, StepSample
from forno.engine.stream import Stream
from forno.errors import DrainingError, EngineError, FornoError, RequestError
from forno.observe.silent import Silent
from forno.request import FinishReason, Request, RequestOutput

log = logging.getLogger(__name__)


class AsyncEngine:
    """All methods belong to the event loop that called ``start``; only ``_run`` and what it calls are the thread's."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._thread = threading.Thread(target=self._run, name="forno-engine", daemon=True)
        self._wake = threading.Condition()
        self._inbox: list[Callable[[], RequestOutput | None]] = []
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[str, Stream] = {}
        self._draining = False
        self._empty: asyncio.Future[None] | None = None
        self._failure: EngineError | None = None

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine's thread. Call once, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def drain(self, timeout: float) -> int:
        """Take no new requests, let the live ones finish for ``timeout`` seconds, abort the rest; returns how many."""
        self._draining = True
        await self._until_empty(timeout)
        late = list(self._streams)
        self._abort(late)
        await self._until_empty(None if self.healthy else 0.0)
        return len(late)

    async def stop(self) -> None:
        """End the thread after its current step. Streams still open end with an error."""
        self._draining = True
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)
        self._end_all(EngineError("the engine was stopped before the request finished"))

    @property
    def healthy(self) -> bool:
        """False once a step has failed, or before ``start``; then every request is refused."""
        return self._failure is None and self._thread.is_alive()

    @property
    def draining(self) -> bool:
        return self._draining

    # -- requests -----------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Stream[RequestOutput]:
        """Start a request; its outputs come from the stream, the last with a ``finish_reason``.

        Raises ``PromptTooLongError`` or another ``RequestError``, ``QueueFullError``, ``DrainingError``, ``EngineError``.
        A refusal that only the engine's thread can find comes as an output with an ``error``.
        """
        return self._submit([request], _output_only)

    def submit_batch(self, requests: Sequence[Request]) -> Stream[tuple[int, RequestOutput]]:
        """Start several requests, all or none; yields (index in ``requests``, output). Raises as ``submit``.

        ``stream.children`` makes the requests for several answers to one prompt.
        """
        return self._submit(requests, _with_index)

    def abort(self, id: str) -> None:
        """End a request; its stream's last output has the reason ``ABORT``. Unknown ids are ignored."""
        self._abort([id])

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def cache_report(self) -> CacheReport:
        return cache_report(self.engine.scheduler.cache)

    def drain_finished(self) -> list[FinishedRequest]:
        """Timings of the requests that finished since the last call."""
        return self.engine.collector.drain_finished()

    def drain_steps(self) -> list[StepSample]:
        """Size and duration of the steps since the last call."""
        return self.engine.collector.drain_steps()

    @property
    def clock(self) -> Callable[[], float]:
        """The clock of ``Request.arrival`` and ``Request.deadline``, in seconds."""
        return self.engine.clock

    @property
    def recorder(self) -> Silent:
        """What is remembered of requests and steps. Reading is for any thread."""
        return self.engine.recorder

    @property
    def max_model_len(self) -> int:
        return self.engine.max_model_len

    def _submit(self, requests: Sequence[Request], wrap: Callable) -> Stream:
        if self._failure is not None:
            raise self._failure
        if self._draining:
            raise DrainingError("the server is shutting down and takes no new requests: retry elsewhere")
        for i, request in enumerate(requests):
            if request.id in self._streams:
                raise RequestError(f"a request with the id {request.id!r} is live already", "request_id")
            self.engine.check(request, len(self._inbox) + i)
        for request in requests:
            self.recorder.announce(request)
        ids = [request.id for request in requests]
        stream: Stream = Stream(ids, wrap, self._abort)
        self._streams.update(dict.fromkeys(ids, stream))
        self._send([partial(self._add, request) for request in requests])
        return stream

    def _abort(self, ids: Iterable[str]) -> None:
        self._send([partial(self._cancel, id) for id in ids])

    def _send(self, commands: list[Callable[[], RequestOutput | None]]) -> None:
        with self._wake:
            self._inbox += commands
            self._wake.notify()

    # -- the engine's thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (commands := self._next_commands()) is not None:
                refused = [output for command in commands if (output := command()) is not None]
                outputs = self.engine.step()
                if refused or outputs:
                    self._call_loop(self._deliver, refused + outputs)
        except Exception as cause:
            log.exception("the engine failed")
            steps = self.engine.collector.steps
            self._call_loop(self._fail, EngineError(f"the engine failed in step {steps + 1}: {cause!r}"))

    def _next_commands(self) -> list[Callable[[], RequestOutput | None]] | None:
        """Wait for something to do; returns what the inbox held, or None to stop."""
        with self._wake:
            while not self._inbox and not self._stopping:
                delay = self.engine.idle_for()
                if delay == 0.0:
                    break
                self._wake.wait(delay)
            commands, self._inbox = self._inbox, []
            return None if self._stopping else commands

    def _add(self, request: Request) -> RequestOutput | None:
        """A refusal or a failure here is about this request alone: the engine has not changed."""
        try:
            self.engine.add_request(request)
        except FornoError as error:
            return self._refused(request.id, error)
        except Exception as cause:
            return self._refused(request.id, EngineError(f"request {request.id!r} could not be admitted: {cause!r}"))
        return None

    def _refused(self, id: str, error: FornoError) -> RequestOutput:
        record = self.recorder.request(id)
        if record is not None:
            self.recorder.refuse(record, error)
        return _failed(id, error)

    def _cancel(self, id: str) -> None:
        self.engine.abort(id)

    def _call_loop(self, callback: Callable, argument: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(callback, argument)

    # -- back on the loop ---------------------------------------------------------------------------------------

    def _deliver(self, outputs: Iterable[RequestOutput]) -> None:
        streams = self._streams
        for output in outputs:
            stream = streams.get(output.id)
            if stream is None:
                continue
            if output.finish_reason is not None:
                del streams[output.id]
            stream.put(output)
        if not streams and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def _fail(self, error: EngineError) -> None:
        self._failure = error
        for record in self.recorder.live():
            self.recorder.refuse(record, error)
        self._end_all(error)

    def _end_all(self, error: EngineError) -> None:
        self._deliver([_failed(id, error) for id in list(self._streams)])

    async def _until_empty(self, timeout: float | None) -> None:
        if self._streams:
            self._empty = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty, timeout)


def _failed(id: str, error: FornoError) -> RequestOutput:
    return RequestOutput(id=id, text="", token_ids=(), finish_reason=FinishReason.ERROR, error=error)


def _output_only(index: int, output: RequestOutput) -> RequestOutput:
    return output


def _with_index(index: int, output: RequestOutput) -> tuple[int, RequestOutput]:
    return index, output
