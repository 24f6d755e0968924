"""The recorder: the last steps and requests, remembered in bounded memory. It knows numbers and ids; no token, no text.

The engine's thread writes, and waits for nobody. Any thread reads: what was overwritten meanwhile is left out, never torn,
because every read of a step is one call that the interpreter does not interrupt, checked against the number in it.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import islice
from operator import attrgetter
from struct import Struct
from typing import Protocol

from forno.cache.misses import Lookup
from forno.observe.record import Pressure, RequestRecord, Shortage, StepRecord
from forno.request import Request, RequestOutput, StepPlan, StepResult

_STEP = Struct("=q7d9q")
"""A step's number, its seven times, its counts, and where its rows are: 136 bytes."""
_REQUEST, _START, _NUM_TOKENS = attrgetter("request"), attrgetter("start"), attrgetter("num_tokens")
_SAMPLE, _DRAFTS = attrgetter("sample"), attrgetter("drafts")
_SHORTAGES = (None, *Shortage)
_SHORTAGE_CODES = {shortage: code for code, shortage in enumerate(_SHORTAGES)}
ROWS_PER_STEP = 16
"""Rows remembered per step of the ring, on average: steps of more rows mean fewer steps."""


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

    def live(self) -> list[RequestRecord]:
        """Requests that the engine has not finished, in the order in which they came."""
        return []

    def finished(self, count: int = 100) -> list[RequestRecord]:
        """The last ``count`` requests that are over, oldest first."""
        return []

    # -- steps: the engine tells --------------------------------------------------------------------------------

    def step(self, plan: StepPlan, result: StepResult, times: tuple[float, float, float, float], scheduler: Pressed) -> None:
        """A step is over: ``times`` say when it began, was planned, was computed, and when its outputs were made."""


class Recorder(Silent):
    """The last ``max_steps`` steps, with ``ROWS_PER_STEP`` rows each on average, the last ``max_requests`` that are over,
    and all that are live.

    Memory at the default sizes, once full: 2 MiB of steps, 3 MiB of rows, about 3 MiB of requests. A step costs about two
    microseconds and a tenth of one per row, some ten times as much where the step has emptied the processor's caches; steps
    are kept packed, so that the garbage collector has nothing to visit.
    """

    recording = True

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        max_steps: int = 16384,
        max_requests: int = 4096,
    ) -> None:
        self.clock = clock
        self.max_steps, self.max_requests = max_steps, max_requests
        self.num_steps = 0
        """Steps ever recorded: also the number of the last one."""
        self._steps = bytearray(_STEP.size * max_steps)
        self._rows = array("I", bytes(4 * 3 * ROWS_PER_STEP * max_steps))
        self._head = 0
        """Row entries ever claimed in the ring: ``serial``, ``start`` and ``tokens`` of every row, column by column."""
        self._live: dict[str, RequestRecord] = {}
        self._over: deque[RequestRecord] = deque()
        self._by_id: dict[str, RequestRecord] = {}
        self._by_serial: dict[int, RequestRecord] = {}
        self._serials: dict[int, int] = {}
        """The runner's index to the serial."""
        self._serial = 0

    # -- requests, as the engine's thread tells -----------------------------------------------------------------

    def arrive(self, request: Request, index: int, ahead: int, running: int) -> None:
        record = self._live.get(request.id) or self.announce(request)
        self._serial += 1
        record.serial, record.ahead, record.running = self._serial, ahead, running
        self._serials[index] = self._serial
        self._by_serial[self._serial] = record

    def park(self, id: str, owner: str) -> None:
        self._live[id].parked.append((self.clock(), owner))

    def schedule(self, id: str, lookup: Lookup) -> None:
        record, now = self._live[id], self.clock()
        if record.scheduled:
            record.resumed.append((now, lookup.matched))
        else:
            record.scheduled, record.lookup, record.num_cached = now, lookup, lookup.matched

    def preempt(self, id: str, computed: int) -> None:
        record = self._live[id]
        record.num_preemptions += 1
        record.preempted.append((self.clock(), computed))

    def speak(self, id: str) -> None:
        self._live[id].first_token = self.clock()

    def finish(self, output: RequestOutput, index: int) -> None:
        del self._serials[index]
        assert output.finish_reason is not None
        record = self._live[output.id]
        record.num_generated = output.num_generated_tokens
        self._retire(record, output.finish_reason.value, output.error)

    # -- requests, as the server tells: any thread --------------------------------------------------------------

    def announce(self, request: Request) -> RequestRecord:
        record = super().announce(request)
        self._live[request.id] = record
        return record

    def refuse(self, record: RequestRecord, error: BaseException) -> None:
        self._retire(record, "refused", error)

    def _retire(self, record: RequestRecord, reason: str, error: BaseException | None) -> None:
        record.finished, record.reason = self.clock(), reason
        record.error = "" if error is None else type(error).__name__
        self._by_id[record.id] = record
        self._over.append(record)
        if self._live.get(record.id) is record:
            del self._live[record.id]
        if len(self._over) > self.max_requests:
            self._forget(self._over.popleft())

    def _forget(self, record: RequestRecord) -> None:
        self._by_serial.pop(record.serial, None)
        if self._by_id.get(record.id) is record:  # and not a later one that was given the same id
            del self._by_id[record.id]

    # -- steps --------------------------------------------------------------------------------------------------

    def step(self, plan: StepPlan, result: StepResult, times: tuple[float, float, float, float], scheduler: Pressed) -> None:
        # After a step the caches hold the model's weights and nothing else, so what counts here is how much code and data
        # is touched, not how often: columns are read by C functions, and packed by one.
        rows = plan.rows
        entries = array("I", map(self._serials.__getitem__, map(_REQUEST, rows)))
        entries.extend(map(_START, rows))
        entries.extend(map(_NUM_TOKENS, rows))
        ring, count = self._rows, len(entries)
        head, size = self._head, len(ring)
        place = head % size
        if place + count > size:  # entries of a step lie side by side
            head, place = head + size - place, 0
        self._head = head + count  # from here on, what lies there is lost for readers
        ring[place : place + count] = entries
        drafts = sum(map(len, map(_DRAFTS, rows)))
        waiting, shortage, reserved, used = scheduler.pressure()
        number = self.num_steps + 1
        _STEP.pack_into(
            self._steps,
            number % self.max_steps * _STEP.size,
            number,
            *times,
            result.seconds,
            result.mask_seconds,
            result.cpu_seconds,
            sum(map(_SAMPLE, rows)) + drafts,
            drafts,
            waiting,
            _SHORTAGE_CODES[shortage],
            reserved,
            used,
            result.shared_keys,
            head,
            len(rows),
        )
        self.num_steps = number

    # -- reading: any thread ------------------------------------------------------------------------------------

    def steps(self, since: int = 0, last: int | None = None) -> list[StepRecord]:
        stop = self.num_steps + 1
        first = max(since + 1, stop - self.max_steps, 1 if last is None else stop - last)
        return [step for number in range(first, stop) if (step := self._step(number)) is not None]

    def during(self, start: float, end: float) -> list[StepRecord]:
        numbers = range(max(1, self.num_steps + 1 - self.max_steps), self.num_steps + 1)
        first = bisect_left(numbers, start, key=lambda n: self._times(n)[1])
        found = []
        for number in numbers[first:]:
            step = self._step(number)
            if step is not None and step.start >= end:
                break
            if step is not None:
                found.append(step)
        return found

    @property
    def horizon(self) -> float:
        number = self.num_steps - self.max_steps + 1
        if number <= 1 and self._head <= len(self._rows):
            return 0.0
        oldest = next((s for n in range(max(number, 1), self.num_steps + 1) if (s := self._step(n)) is not None), None)
        return self.clock() if oldest is None else oldest.start

    def request(self, id: str) -> RequestRecord | None:
        return self._live.get(id) or self._by_id.get(id)

    def answers(self, response: str) -> list[RequestRecord]:
        known = self.request(response)
        if known is not None:
            return [known]
        return [record for record in [*self._over.copy(), *self.live()] if record.response == response]

    def live(self) -> list[RequestRecord]:
        return list(self._live.copy().values())

    def finished(self, count: int = 100) -> list[RequestRecord]:
        over = self._over.copy()
        return list(islice(over, max(0, len(over) - count), None))

    def _times(self, number: int) -> tuple[float, float]:
        """Start and end of a step; of one that was overwritten, times before all others."""
        values = _STEP.unpack_from(self._steps, number % self.max_steps * _STEP.size)
        return (values[1], values[4]) if values[0] == number else (0.0, 0.0)

    def _step(self, number: int) -> StepRecord | None:
        values = _STEP.unpack_from(self._steps, number % self.max_steps * _STEP.size)
        found, start, planned, computed, end, seconds, mask_seconds, cpu_seconds = values[:8]
        outputs, drafts, waiting, shortage, reserved, used, shared_keys, at, count = values[8:]
        size = len(self._rows)
        entries = self._rows[at % size : at % size + 3 * count].tolist()
        if found != number or self._head - at > size:
            return None
        return StepRecord(
            number,
            start,
            planned,
            computed,
            end,
            seconds,
            mask_seconds,
            cpu_seconds,
            requests=tuple([self._by_serial.get(serial) or _forgotten(serial) for serial in entries[:count]]),
            starts=tuple(entries[count : 2 * count]),
            tokens=tuple(entries[2 * count :]),
            outputs=outputs,
            num_drafts=drafts,
            waiting=waiting,
            shortage=_SHORTAGES[shortage],
            kv_reserved=reserved,
            kv_used=used,
            shared_keys=shared_keys,
        )


def _forgotten(serial: int) -> RequestRecord:
    """Stands for a request whose record is no longer there."""
    return RequestRecord(f"request {serial}", serial, 0, 0)
