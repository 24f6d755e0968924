"""What is told to a recorder and asked of it, and the one that remembers nothing. Knows no memory: ``recorder`` has one."""

from __future__ import annotations

from typing import Protocol

from forno.cache.misses import Lookup
from forno.observe.record import Pressure, RequestRecord, StepRecord
from forno.request import Request, RequestOutput, StepPlan, StepResult


class Pressed(Protocol):
    """Who knows what the plan left behind: the scheduler."""

    def pressure(self) -> Pressure:
        """After the step that was computed last."""


class Silent:
    """A recorder that remembers nothing: what ``--no-record`` puts in its place."""

    recording = False
    max_steps = 0
    max_requests = 0

    # -- requests: the scheduler and the engine tell ------------------------------------------------------------

    def arrive(self, request: Request, index: int, ahead: int, running: int) -> None:
        """The runner knows ``request`` as ``index``; ``ahead`` others wait before it and ``running`` run."""

    def park(self, id: str, owner: str) -> None:
        """It waits for a block of its prompt that ``owner`` computes."""

    def schedule(self, id: str, lookup: Lookup) -> None:
        """It got blocks, for the first time or again; ``lookup`` is what the cache held of its tokens."""

    def preempt(self, id: str, computed: int) -> None:
        """It lost its blocks and with them ``computed`` tokens."""

    def speak(self, id: str) -> None:
        """Its first token is there."""

    def finish(self, output: RequestOutput, index: int) -> None:
        """``output`` was its last; the runner forgets ``index``."""

    # -- requests: the server tells, on any thread --------------------------------------------------------------

    def announce(self, request: Request) -> RequestRecord:
        """``request``, whose id is not live, is on its way to the engine. Returns its record, to write further times in."""
        sampling = request.sampling
        record = RequestRecord(request.id, 0, len(request.prompt), sampling.max_tokens, request.constraint is not None)
        record.slo_class = request.slo_class
        record.tokenized = record.arrival = request.arrival
        return record

    def refuse(self, record: RequestRecord, error: BaseException) -> None:
        """It is over, and the engine never took it, or failed with it."""

    # -- reading: any thread ------------------------------------------------------------------------------------

    def steps(self, since: int = 0, last: int | None = None) -> list[StepRecord]:
        """Steps with a number above ``since``, oldest first; of those the ``last`` ones."""
        return []

    def during(self, start: float, end: float) -> list[StepRecord]:
        """Steps that overlap a time, oldest first."""
        return []

    @property
    def horizon(self) -> float:
        """Start of the oldest step that is still remembered; 0 while none was forgotten."""
        return 0.0

    def request(self, id: str) -> RequestRecord | None:
        """The record of that id, the latest one; None if there never was one, or no longer."""
        return None

    def answers(self, response: str) -> list[RequestRecord]:
        """Records of all requests that one response is made of, in order."""
        return []

    def beginning(self, prefix: str) -> list[str]:
        """Ids of all responses that begin with ``prefix``, each once, oldest first."""
        return []

    def live(self) -> list[RequestRecord]:
        """Requests that the engine has not finished, in the order in which they came."""
        return []

    def finished(self, count: int = 100) -> list[RequestRecord]:
        """The last ``count`` requests that are over, oldest first."""
        return []

    # -- steps: the engine tells --------------------------------------------------------------------------------

    def step(self, plan: StepPlan, result: StepResult, times: tuple[float, float, float, float], scheduler: Pressed) -> None:
        """A step is over: ``times`` say when it began, was planned, was computed, and when its outputs were made."""
