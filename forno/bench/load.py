"""One run of a load: who is sent when, what is counted, and when it is over. It knows conversations and a client, no metric.

The order of a run: warm-up requests, counted ones, and then fillers, which keep the load up until the last counted one has
ended and are cancelled then. So every counted request meets the full load, and none meets the drain.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import math
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from forno.bench.arrivals import Closed, Open
from forno.bench.records import LoadSample, RequestRecord

if TYPE_CHECKING:
    from forno.bench.workload import Call, Conversation

SAMPLE_SECONDS = 0.5
FAILURES_IN_A_ROW = 50
LAG_SECONDS = 1 / 16
"""Between looks at how late the event loop is."""


class Asker(Protocol):
    """What a run needs of a client."""

    @property
    def in_flight(self) -> int: ...

    async def ask(self, call: Call, record: RequestRecord) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Trace:
    """Conversations that say themselves when they come."""

    words: str = "trace"
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured. Whichever of ``requests`` and ``seconds`` ends first; without both, until the conversations end."""

    requests: float = math.inf
    seconds: float = math.inf
    """Of the measured window."""
    warmup_requests: int = 0
    warmup_seconds: float = 0.0
    """Nothing counts before both have passed."""
    failures_in_a_row: int = FAILURES_IN_A_ROW
    """After so many, with no success between them, the run is given up."""


@dataclass(slots=True)
class Gathered:
    """What a run has so far; progress reads it while the run writes."""

    records: list[RequestRecord] = field(default_factory=list)
    """In the order of sending; a request's fields come as it goes."""
    samples: list[LoadSample] = field(default_factory=list)
    loop_lags: list[float] = field(default_factory=list)
    opened: float | None = None
    """When the first counted request was sent."""
    fell: float | None = None
    """When the load began to fall because nothing was left to send."""
    ended: float = 0.0
    cpu_seconds: float = 0.0
    ended_requests: list[RequestRecord] = field(default_factory=list)
    """In the order of their ends."""
    interrupted: bool = False
    abandoned: str = ""
    """Why the run was given up, if it was."""

    @property
    def window(self) -> tuple[float, float]:
        """The measured window, in seconds since the run's start."""
        counted = [r for r in self.records if r.counted]
        if self.opened is None or not counted:
            return 0.0, 0.0
        last = self.ended if self.interrupted else max(r.ended for r in counted)
        early = self.fell if self.fell is not None and self.fell < last else None
        if early is not None and 2 * sum(r.ended <= early for r in counted) >= len(counted):
            return self.opened, early
        return self.opened, last

    @property
    def notes(self) -> list[str]:
        """What a reader must know of how the run went."""
        notes = [f"the run was given up: {self.abandoned}"] if self.abandoned else []
        if self.interrupted:
            notes.append("interrupted: these are the numbers of what was there")
        counted, (_, end) = [r for r in self.records if r.counted], self.window
        if self.fell is not None and any(r.ended > self.fell for r in counted) and not (self.interrupted or self.abandoned):
            late = sum(r.ended > self.fell for r in counted)
            what = "rates are too low for it" if end > self.fell else "their latencies are of a falling load"
            notes.append(f"{late} of {len(counted)} counted requests ended when nothing was left to send: {what}")
        return notes


class Run:
    """One run; ``go`` it once. Times are what ``clock`` says, seconds since the run's start."""

    def __init__(
        self, client: Asker, conversations: Iterator[Conversation], extent: Extent, clock: Callable[[], float]
    ) -> None:
        self.got = Gathered()
        self._client, self._conversations, self._extent, self._clock = client, conversations, extent, clock
        self._over = asyncio.Event()
        self._open_counted = 0
        self._num_counted = 0
        self._issued = 0
        self._closed = False
        """Whether all requests that will count have been sent."""
        self._failures = 0
        self._bounds: list[float] = []
        """When the load's second and later stages begin."""

    async def go(self, load: Closed | Open | Trace, seed: int, gauges: Callable[[], object] | None = None) -> Gathered:
        """Run ``load`` until all that counts has ended. ``gauges`` is awaited for the server's, about twice a second."""
        cpu = _cpu_seconds()
        watchers = [asyncio.create_task(self._sample(gauges)), asyncio.create_task(self._measure_lag())]
        sender = asyncio.create_task(self._send(load, seed))
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait([sender, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.got.ended = self._clock()
            self.got.cpu_seconds = _cpu_seconds() - cpu
            await _cancel([over, sender, *watchers])
            for record in self.got.records:
                record.counted = record.counted and record.error_kind != "cancelled"
        if not sender.cancelled() and (error := sender.exception()):
            raise error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
        return self.got

    def stop(self) -> None:
        """End the run now, with what is there."""
        self.got.interrupted = True
        self._over.set()

    async def _send(self, load: Closed | Open | Trace, seed: int) -> None:
        if isinstance(load, Open):
            self._bounds = [*itertools.accumulate(stage.seconds for stage in load.stages[:-1])]
        async with asyncio.TaskGroup() as group:
            if isinstance(load, Closed):
                for client in range(load.clients):
                    group.create_task(self._client_of(load.start(client)))
            else:
                await self._arrivals(load, seed, group)

    async def _client_of(self, start: float) -> None:
        """One client of a closed loop."""
        await self._sleep_until(start)
        for conversation in self._conversations:
            await self._converse(conversation, conversation.first(), self._clock())
        self._fall()

    async def _arrivals(self, load: Open | Trace, seed: int, group: asyncio.TaskGroup) -> None:
        """Conversations begin when they are due, however many are under way."""
        times = (time for time, _ in load.times(seed)) if isinstance(load, Open) else itertools.repeat(0.0)
        for time, conversation in zip(times, self._conversations, strict=False):
            call = conversation.first()  # made before the wait for its time
            due = time if call.at is None or isinstance(load, Open) else call.at
            await self._sleep_until(due)
            group.create_task(self._converse(conversation, call, due))
        if isinstance(load, Open) and math.isfinite(load.seconds):
            await self._sleep_until(load.seconds)
        self._fall()

    async def _converse(self, conversation: Conversation, first: Call, scheduled: float) -> None:
        call = first
        for turn in itertools.count():
            record = self._issue(scheduled)
            record.session, record.turn = conversation.session, turn
            answer = await self._client.ask(call, record)
            self._account(record)
            following = None if answer is None else conversation.next(answer)
            if following is None:
                return
            call = following
            scheduled = max(self._clock() + conversation.think_seconds, call.at or 0.0)
            await self._sleep_until(scheduled)

    def _issue(self, scheduled: float) -> RequestRecord:
        """A record for the next request, and whether it counts."""
        extent, got = self._extent, self.got
        warm = self._issued < extent.warmup_requests or scheduled < extent.warmup_seconds
        if not warm and got.opened is None:
            got.opened = scheduled
        begun = scheduled if got.opened is None else got.opened
        self._closed = self._closed or self._num_counted >= extent.requests or scheduled >= begun + extent.seconds
        record = RequestRecord(
            index=self._issued,
            stage=bisect.bisect_right(self._bounds, scheduled),
            scheduled=round(scheduled, 6),
            counted=not (warm or self._closed),
        )
        self._issued += 1
        self._num_counted += record.counted
        self._open_counted += record.counted
        got.records.append(record)
        self._end_if_all_counted()
        return record

    def _account(self, record: RequestRecord) -> None:
        """A request has ended."""
        self.got.ended_requests.append(record)
        self._open_counted -= record.counted
        self._failures = 0 if record.error is None else self._failures + 1
        if self._failures >= self._extent.failures_in_a_row and not self.got.abandoned:
            self.got.abandoned = f"{self._failures} requests failed in a row, the last with: {record.error}"
            self._over.set()
        self._end_if_all_counted()

    def _end_if_all_counted(self) -> None:
        """Over once the counted requests are complete in number and have ended."""
        complete = self._closed or self._num_counted >= self._extent.requests
        if complete and not self._open_counted:
            self._over.set()

    def _fall(self) -> None:
        if self.got.fell is None:
            self.got.fell = self._clock()

    async def _sleep_until(self, time: float) -> None:
        while (left := time - self._clock()) > 0:
            await asyncio.sleep(left)

    async def _sample(self, gauges: Callable[[], object] | None) -> None:
        """The client's view of the load, and the server's, again and again."""
        while True:
            sample = LoadSample(time=round(self._clock(), 3), in_flight=self._client.in_flight)
            if gauges is not None:
                sample.running, sample.waiting, sample.kv_usage = await gauges()  # type: ignore[misc]
            self.got.samples.append(sample)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _measure_lag(self) -> None:
        while True:
            due = self._clock() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self.got.loop_lags.append(max(0.0, self._clock() - due))


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
