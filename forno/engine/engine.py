"""The engine: requests in, ``step()`` by ``step()``, outputs out. One thread calls everything here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from forno import env
from forno.engine.output import OutputProcessor
from forno.engine.stats import EngineStats, StatsCollector
from forno.errors import RequestError
from forno.observe.silent import Silent
from forno.request import Request, RequestOutput, Runner, StepResult
from forno.scheduler import Scheduler, Sequence

NOTHING = StepResult(tokens=())


class Engine:
    """Owns a runner, a scheduler and the outputs of live requests."""

    def __init__(
        self, runner: Runner, scheduler: Scheduler, output: OutputProcessor | None = None, recorder: Silent | None = None
    ) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.output = OutputProcessor() if output is None else output
        self.recorder = Silent() if recorder is None else recorder
        """The one that ``scheduler`` writes too."""
        self.collector = StatsCollector()
        self._live: dict[str, Sequence] = {}
        self._debug = bool(env.DEBUG.get())

    @property
    def clock(self) -> Callable[[], float]:
        return self.scheduler.clock

    @property
    def max_model_len(self) -> int:
        return self.scheduler.admission.max_model_len

    def check(self, request: Request, arriving: int = 0) -> None:
        """Raises what ``add_request`` would for the scheduler's reasons. Only reads; any thread may call it.

        ``arriving`` requests passed this check but were not added yet.
        """
        if request.id in self._live:
            raise RequestError(f"a request with the id {request.id!r} is live already; ids must be unique", "request_id")
        self.scheduler.check(request, arriving)

    def add_request(self, request: Request) -> None:
        """Queue a request. Its arrival is now unless it says otherwise.

        Raises ``PromptTooLongError``, ``QueueFullError`` or another ``RequestError``; then nothing has changed.
        """
        if not request.arrival:
            request = replace(request, arrival=self.clock())
        self.check(request)
        self.output.open(request)
        try:
            index = self.runner.admit(request)
        except BaseException:
            self.output.close(request.id)
            raise
        self.recorder.arrive(request, index, len(self.scheduler.waiting), len(self.scheduler.running))
        self._live[request.id] = self.scheduler.add(request, index)

    def abort(self, id: str) -> bool:
        """Cancel a request: its blocks are free now, the next ``step`` returns its last output. False if it is not live."""
        return self.scheduler.abort(id)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def idle_for(self) -> float | None:
        """Seconds until ``step`` has something to do: 0 is now, None is not before another request comes."""
        return self.scheduler.idle_for()

    def step(self) -> list[RequestOutput]:
        """Compute one step; returns what it added to each request that has something new."""
        clock = self.clock
        started = clock()
        plan = self.scheduler.schedule()
        planned = clock()
        result = self.runner.run(plan) if plan.rows else NOTHING
        computed = clock()
        outputs = self.output.collect(self.scheduler.commit(plan, result))
        if plan.rows:
            self.recorder.step(plan, result, (started, planned, computed, clock()), self.scheduler)
        self.collector.step(plan, result, outputs)
        for output in outputs:
            if output.finish_reason is not None:
                self._retire(output)
        if self._debug:
            self.check_integrity()
        return outputs

    def sequences(self) -> list[Sequence]:
        """Those of live requests, in order of arrival; for reading, from any thread."""
        return list(self._live.copy().values())

    def stats(self) -> EngineStats:
        return self.collector.snapshot(self.scheduler)

    def check_integrity(self) -> None:
        """Between steps; raises AssertionError."""
        self.scheduler.check_integrity()
        ended = [id for id in self._live if id not in self.scheduler]
        assert len(ended) == self.scheduler.num_unreported, "an ended request was neither reported nor forgotten"
        assert len(self.output) == len(self._live), "transcripts and live requests differ"

    def _retire(self, output: RequestOutput) -> None:
        """``output`` was the last of its request."""
        assert output.finish_reason is not None
        sequence = self._live.pop(output.id)
        self.scheduler.retire(sequence, output.num_generated_tokens)
        self.output.close(output.id)
        self.runner.release(sequence.index)
        self.recorder.finish(output, sequence.index)
        self.collector.finish(sequence, output.finish_reason, output.times)
