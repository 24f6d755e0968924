"""What is sent when, what counts, and when it is over: in virtual time, against a server that is a few lines of arithmetic."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.bench.arrivals import Closed, Open, Stage
from forno.bench.load import Extent, Gathered, Run, Trace
from forno.bench.records import RequestRecord
from forno.bench.workload import Call
from forno.errors import ConfigError
from tests.bench.virtual_time import now, virtually

Times = Callable[[int], float]


@dataclass
class Server:
    """Takes ``seconds(i)`` for request ``i`` in order of arrival, ``slots`` at once; the first token comes at half of it."""

    seconds: Times
    slots: int = 1_000_000
    fails: Callable[[int], bool] = lambda i: False
    in_flight: int = 0
    most: int = 0
    arrived: list[float] = field(default_factory=list)
    _free: asyncio.Semaphore | None = None

    async def ask(self, call: Call, record: RequestRecord) -> str | None:
        number, record.sent = len(self.arrived), now()
        self.arrived.append(now())
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        self._free = self._free or asyncio.Semaphore(self.slots)
        try:
            async with self._free:
                await asyncio.sleep(self.seconds(number) / 2)
                record.first = now()
                await asyncio.sleep(self.seconds(number) / 2)
            record.last, record.gaps, record.output_tokens = now(), [now() - record.first], 2
            if self.fails(number):
                record.error, record.error_kind = "500", "status"
            return None if record.error else f"answer {number}"
        except asyncio.CancelledError:
            record.error, record.error_kind = "cancelled", "cancelled"
            raise
        finally:
            self.in_flight -= 1
            record.ended = now()


@dataclass
class Talk:
    session: int
    turns: int = 1
    think_seconds: float = 0.0
    at: tuple[float | None, ...] = (None,)
    heard: list[str] = field(default_factory=list)

    def first(self) -> Call:
        return Call(2, at=self.at[0])

    def next(self, answer: str) -> Call | None:
        self.heard.append(answer)
        if len(self.heard) == self.turns:
            return None
        return Call(2, at=self.at[len(self.heard) % len(self.at)])


def endless(**talk: Any) -> Iterator[Talk]:
    return (Talk(i, **talk) for i in itertools.count())


def go(
    server: Server,
    load: Closed | Open | Trace,
    extent: Extent,
    talks: Iterator[Talk] | None = None,
    stop_at: float | None = None,
) -> Gathered:
    async def main() -> Gathered:
        run = Run(server, talks or endless(), extent, now)
        if stop_at is not None:
            asyncio.get_running_loop().call_later(stop_at, run.stop)
        return await run.go(load, seed=1)

    return virtually(main)


def counted(got: Gathered) -> list[RequestRecord]:
    return [r for r in got.records if r.counted]


def test_a_closed_loop() -> None:
    """Four clients, a second each: 4 warm-up requests, 8 that count, and 4 that keep up the load until those have ended."""
    server = Server(lambda i: 1.0)
    got = go(server, Closed(4), Extent(requests=8, warmup_requests=4))
    assert [r.sent for r in counted(got)] == [1.0] * 4 + [2.0] * 4
    assert (server.most, got.window, got.fell) == (4, (1.0, 3.0), None)
    assert [r.scheduled for r in got.records] == [r.sent for r in got.records]
    assert all(r.error is None for r in counted(got))


def test_fillers_keep_up_the_load_and_do_not_count() -> None:
    """Client 0's second request takes long: the other three go on until it has ended."""
    got = go(Server(lambda i: 10.0 if i == 4 else 1.0), Closed(4), Extent(requests=4, warmup_requests=4))
    assert got.window == (1.0, 11.0)
    fillers = [r for r in got.records if not r.counted and r.sent >= 2]
    assert len(fillers) >= 3 * 9
    assert {r.error_kind for r in fillers if r.ended >= 11} <= {"cancelled", None}


def test_a_run_of_a_measured_time() -> None:
    got = go(Server(lambda i: 1.0), Closed(2), Extent(seconds=5, warmup_seconds=2.5))
    assert [r.sent for r in counted(got)] == [3.0, 3.0, 4.0, 4.0, 5.0, 5.0, 6.0, 6.0, 7.0, 7.0]
    assert got.window == (3.0, 8.0)


def test_clients_start_over_time() -> None:
    got = go(Server(lambda i: 100.0), Closed(4, ramp_seconds=8), Extent(requests=4))
    assert [r.sent for r in got.records[:4]] == [0.0, 2.0, 4.0, 6.0]


def test_an_open_loop_waits_for_nobody() -> None:
    """A server that answers nothing for minutes gets its requests at the same times."""
    load = Open((Stage(10.0),))
    times = [time for time, _ in itertools.islice(load.times(1), 50)]
    for seconds in (0.1, 100.0):
        server = Server(lambda i, s=seconds: s)  # type: ignore[misc]
        got = go(server, load, Extent(requests=50))
        assert server.arrived[:50] == pytest.approx(times)
        assert [r.scheduled for r in got.records[:50]] == pytest.approx(times, abs=1e-6)


def test_a_queue_belongs_to_the_server() -> None:
    """One at a time, a second each, 2 arrivals a second: TTFT grows by half a second per request, and is not cut."""
    got = go(Server(lambda i: 1.0, slots=1), Open((Stage(2.0),), "constant"), Extent(requests=20))
    ttft = [r.first - r.sent for r in counted(got) if r.first is not None]
    assert ttft == pytest.approx([0.5 + 0.5 * i for i in range(20)])
    assert got.window[1] == pytest.approx(20.0)


def test_stages() -> None:
    load = Open((Stage(1.0, 4.0), Stage(4.0, 4.0), Stage(1.0, 4.0)), "constant")
    got = go(Server(lambda i: 0.25), load, Extent())
    assert [sum(r.stage == stage for r in got.records) for stage in range(3)] == [4, 16, 4]
    assert (got.fell, got.window) == (12.0, (0.0, 11.25))
    assert not got.notes


def test_what_still_runs_when_the_load_has_fallen() -> None:
    """The window ends with the load, as long as half of the requests ended before."""
    got = go(Server(lambda i: 3.0), Open((Stage(1.0, 10.0),), "constant"), Extent())
    assert (got.fell, got.window, len(counted(got))) == (10.0, (0.0, 10.0), 10)
    assert "2 of 10 counted requests ended when nothing was left to send: their latencies" in got.notes[0]
    late = go(Server(lambda i: 30.0), Open((Stage(1.0, 10.0),), "constant"), Extent())
    assert late.window == (0.0, 39.0)
    assert "rates are too low" in late.notes[0]


def test_conversations_end() -> None:
    got = go(Server(lambda i: 1.0), Closed(2), Extent(), iter([Talk(0), Talk(1), Talk(2)]))
    assert len(counted(got)) == 3
    assert (got.fell, got.window) == (1.0, (0.0, 1.0))
    assert "1 of 3" in got.notes[0]


def test_fewer_conversations_than_wanted_are_no_endless_wait() -> None:
    assert len(counted(go(Server(lambda i: 1.0), Closed(2), Extent(requests=100), iter([Talk(0)])))) == 1
    assert not go(Server(lambda i: 1.0), Closed(2), Extent(requests=100), iter([])).records


def test_turns_follow_answers() -> None:
    talks = [Talk(i, turns=3, think_seconds=0.5) for i in range(2)]
    got = go(Server(lambda i: 1.0), Closed(1), Extent(), iter(talks))
    assert [(r.session, r.turn, r.sent) for r in got.records] == [
        (0, 0, 0),
        (0, 1, 1.5),
        (0, 2, 3),
        (1, 0, 4),
        (1, 1, 5.5),
        (1, 2, 7),
    ]
    assert talks[0].heard == ["answer 0", "answer 1", "answer 2"]
    assert [r.scheduled for r in got.records] == [r.sent for r in got.records]


def test_a_failed_turn_ends_its_conversation() -> None:
    got = go(Server(lambda i: 1.0, fails=lambda i: i == 1), Closed(1), Extent(), iter([Talk(0, turns=3), Talk(1, turns=2)]))
    assert [(r.session, r.turn) for r in got.records] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_turns_of_an_open_loop_are_in_the_stage_of_their_time() -> None:
    load = Open((Stage(1.0, 2.0), Stage(1.0, 2.0)), "constant")
    got = go(Server(lambda i: 1.2), load, Extent(), endless(turns=2))
    assert [(r.turn, r.stage) for r in got.records if r.session == 1] == [(0, 0), (1, 1)]


def test_a_trace_at_its_own_times() -> None:
    talks = [Talk(0, at=(0.0, 3.0), turns=2), Talk(1, at=(1.5,)), Talk(2, at=(1.5, 2.0), turns=2)]
    got = go(Server(lambda i: 1.0), Trace(), Extent(), iter(talks))
    assert [(r.session, r.turn, r.sent) for r in got.records] == [(0, 0, 0), (1, 0, 1.5), (2, 0, 1.5), (2, 1, 2.5), (0, 1, 3)]


def test_an_open_loop_keeps_its_own_times_whatever_a_file_says() -> None:
    got = go(
        Server(lambda i: 0.1), Open((Stage(1.0, 3.0),), "constant"), Extent(), iter([Talk(i, at=(100.0,)) for i in range(3)])
    )
    assert [r.sent for r in got.records] == [0.0, 1.0, 2.0]


def test_an_interrupted_run_keeps_what_is_there() -> None:
    got = go(Server(lambda i: 1.0), Closed(2), Extent(requests=1000), stop_at=3.5)
    assert (got.interrupted, got.ended, got.window) == (True, 3.5, (0.0, 3.5))
    assert len(counted(got)) == 6
    assert [r.error_kind for r in got.records if not r.counted] == ["cancelled", "cancelled"]
    assert "interrupted" in got.notes[0]


def test_a_server_that_fails_always_is_given_up() -> None:
    got = go(Server(lambda i: 0.01, fails=lambda i: i > 3), Closed(4), Extent(seconds=1e6, failures_in_a_row=20))
    assert got.abandoned == "20 requests failed in a row, the last with: 500"
    assert len(got.records) < 40


def test_failures_between_successes_are_no_reason_to_stop() -> None:
    got = go(Server(lambda i: 0.01, fails=lambda i: i % 10 != 0), Closed(4), Extent(requests=400, failures_in_a_row=20))
    assert (len(counted(got)), got.abandoned) == (400, "")


def test_a_workload_that_breaks_ends_the_run_with_its_own_error() -> None:
    def breaks() -> Iterator[Talk]:
        yield Talk(0)
        raise ConfigError("line 2 is no request")

    for load in (Closed(3), Open((Stage(5.0),)), Trace()):
        with pytest.raises(ConfigError, match="line 2 is no request"):
            go(Server(lambda i: 1.0), load, Extent(), breaks())


def test_samples_of_the_load() -> None:
    async def main() -> Gathered:
        async def gauges() -> tuple[float | None, float | None, float | None]:
            return 2.0, 1.0, None

        run = Run(Server(lambda i: 1.0), endless(), Extent(requests=9), now)
        return await run.go(Closed(3), 1, gauges)

    got = virtually(main)
    assert [sample.time for sample in got.samples[:4]] == [0.0, 0.5, 1.0, 1.5]
    assert {(s.running, s.waiting, s.kv_usage) for s in got.samples} == {(2.0, 1.0, None)}
    assert {s.in_flight for s in got.samples[1:]} == {3}
    assert max(got.loop_lags) < 1e-9


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 30),
    st.integers(0, 10),
    st.lists(st.floats(0.01, 5.0), min_size=1, max_size=20),
    st.integers(1, 3),
    st.booleans(),
)
def test_any_run_counts_what_was_asked(
    clients: int, wanted: int, warmup: int, times: list[float], turns: int, is_open: bool
) -> None:
    server = Server(lambda i: times[i % len(times)], slots=4)
    load = Open((Stage(3.0),)) if is_open else Closed(clients)
    got = go(server, load, Extent(requests=wanted, warmup_requests=warmup), endless(turns=turns))
    assert len(counted(got)) == wanted
    assert not any(r.counted for r in got.records[:warmup])
    assert all(r.error is None and got.window[0] <= r.sent <= r.ended <= got.window[1] + 1e-6 for r in counted(got))
    assert is_open or server.most <= clients
    assert [r.index for r in got.records] == list(range(len(got.records)))
    assert sum(r.error_kind == "cancelled" for r in got.records) <= server.most
