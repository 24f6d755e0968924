"""The bridge: many streams, cancellation, draining, failures. Threads meet at events, never at sleeps."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from forno.engine.stream import children
from forno.errors import DrainingError, EngineError, NumericsError, PromptTooLongError, QueueFullError, RequestError
from forno.request import FinishReason, Request, RequestOutput, SamplingParams, StepPlan
from tests.helpers.fake_runner import FakeRunner, some_tokens, unbatched


def request(id: str, prompt: int = 6, **sampling) -> Request:
    return Request(id, some_tokens(id, prompt), SamplingParams(**{"max_tokens": 6, **sampling}))


async def read(stream) -> list[RequestOutput]:
    return [output async for output in stream]


def ids(outputs: list[RequestOutput]) -> tuple[int, ...]:
    return sum((output.token_ids for output in outputs), ())


class Gate:
    """Holds the engine's thread inside a step, after ``free`` steps, until the test lets it go."""

    def __init__(self, free: int = 0) -> None:
        self.entered, self.leave, self.free = threading.Event(), threading.Event(), free

    def __call__(self, plan: StepPlan) -> None:
        self.free -= 1
        if self.free < 0:
            self.entered.set()
            assert self.leave.wait(20)


async def test_sixty_four_streams_each_get_their_own_tokens(start) -> None:
    engine = start(max_num_batched_tokens=64)
    requests = [request(str(i), 1 + i % 17, max_tokens=1 + i % 23) for i in range(64)]
    results = await asyncio.gather(*(read(engine.submit(r)) for r in requests))
    for r, outputs in zip(requests, results, strict=True):
        assert ids(outputs) == unbatched(r)[0]
        assert [o.finish_reason is None for o in outputs] == [True] * (len(outputs) - 1) + [False]
    assert engine.stats().finished["length"] == 64


async def test_one_call_into_the_loop_per_step(start, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, calls = asyncio.get_running_loop(), []
    original = loop.call_soon_threadsafe

    def counted(callback, *args, **kwargs):
        calls.append(callback)
        return original(callback, *args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    engine = start()
    await asyncio.gather(*(read(engine.submit(request(str(i)))) for i in range(32)))
    deliveries = [c for c in calls if getattr(c, "__name__", "") == "_deliver"]
    assert len(deliveries) <= engine.stats().steps


async def test_a_cancelled_consumer_aborts_its_request(start) -> None:
    gate = Gate()
    engine = start(FakeRunner(num_blocks=256, on_run=gate))
    task = asyncio.ensure_future(read(engine.submit(request("a", max_tokens=500))))
    await asyncio.to_thread(gate.entered.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.leave.set()
    await engine.drain(20)
    assert engine.stats().finished["abort"] == 1
    assert engine.stats().kv_usage == 0.0


async def test_leaving_the_stream_aborts_it(start) -> None:
    gate = Gate(free=1)
    engine = start(FakeRunner(num_blocks=256, on_run=gate))
    async with engine.submit(request("a", max_tokens=500)) as stream:
        async for _ in stream:
            break
    gate.leave.set()
    await engine.drain(20)
    assert engine.stats().finished["abort"] == 1


async def test_abort_ends_the_stream(start) -> None:
    gate = Gate(free=1)
    engine = start(FakeRunner(num_blocks=256, on_run=gate))
    stream = engine.submit(request("a", max_tokens=900))
    await anext(stream)
    engine.abort("a")
    engine.abort("unknown")
    gate.leave.set()
    outputs = await read(stream)
    assert outputs[-1].finish_reason is FinishReason.ABORT


async def test_choices_share_the_prompt_and_come_as_one_stream(start) -> None:
    engine = start()
    seen: dict[int, list[RequestOutput]] = {}
    async for index, output in engine.submit_batch(children(request("a", 40, seed=7), 3)):
        seen.setdefault(index, []).append(output)
    assert sorted(seen) == [0, 1, 2]
    expected = unbatched(request("a", 40))[0]
    assert [ids(outputs) for outputs in seen.values()] == [expected] * 3
    assert engine.stats().computed_tokens <= 40 + 2 * 4 + 3 * 6


async def test_a_batch_is_started_whole_or_not_at_all(start) -> None:
    engine = start()
    with pytest.raises(PromptTooLongError):
        engine.submit_batch([request("a"), request("b", 2000)])
    outputs = await read(engine.submit(request("a")))
    assert ids(outputs) == unbatched(request("a"))[0]


async def test_refusals_are_raised_where_they_are_made(start) -> None:
    gate = Gate()
    engine = start(FakeRunner(num_blocks=256, on_run=gate), max_num_seqs=1, max_num_queued_reqs=1)
    with pytest.raises(PromptTooLongError):
        engine.submit(request("long", 5000))
    first = engine.submit(request("a"))
    with pytest.raises(RequestError, match="live"):
        engine.submit(request("a"))
    await asyncio.to_thread(gate.entered.wait, 20)
    second = engine.submit(request("b"))
    with pytest.raises(QueueFullError):
        engine.submit(request("c"))
    gate.leave.set()
    assert ids(await read(first)) == unbatched(request("a"))[0]
    assert ids(await read(second)) == unbatched(request("b"))[0]


async def test_a_request_that_the_runner_refuses_fails_alone(start) -> None:
    class Picky(FakeRunner):
        def admit(self, request: Request) -> int:
            if request.id == "bad":
                raise ValueError("a token outside the vocabulary")
            return super().admit(request)

    engine = start(Picky())
    bad, good = await asyncio.gather(read(engine.submit(request("bad"))), read(engine.submit(request("good"))))
    assert isinstance(bad[0].error, EngineError)
    assert ids(good) == unbatched(request("good"))[0]
    assert engine.healthy


async def test_a_bad_row_fails_its_own_request(start) -> None:
    runner = FakeRunner()
    runner.fail[("bad", 2)] = NumericsError("NaN")
    engine = start(runner)
    bad, good = await asyncio.gather(read(engine.submit(request("bad"))), read(engine.submit(request("good"))))
    assert isinstance(bad[-1].error, NumericsError)
    assert ids(bad) == unbatched(request("bad"))[0][:2]
    assert good[-1].finish_reason is FinishReason.LENGTH
    assert engine.healthy


async def test_a_failed_step_fails_everybody_and_says_so(start) -> None:
    def explode(plan: StepPlan) -> None:
        if len(plan.rows) == 2:
            raise RuntimeError("the kernel gave up")

    engine = start(FakeRunner(on_run=explode))
    results = await asyncio.gather(*(read(engine.submit(request(str(i), max_tokens=200))) for i in range(2)))
    for outputs in results:
        assert isinstance(outputs[-1].error, EngineError)
        assert "the kernel gave up" in str(outputs[-1].error)
    assert not engine.healthy
    with pytest.raises(EngineError):
        engine.submit(request("c"))


async def test_draining_finishes_what_runs_and_takes_nothing_new(start) -> None:
    engine = start()
    task = asyncio.ensure_future(read(engine.submit(request("a", max_tokens=50))))
    drained = asyncio.ensure_future(engine.drain(20))
    await asyncio.sleep(0)
    with pytest.raises(DrainingError):
        engine.submit(request("b"))
    assert await drained == 0
    assert ids(await task) == unbatched(request("a", max_tokens=50))[0]


async def test_draining_aborts_who_is_too_slow(start) -> None:
    gate = Gate()
    engine = start(FakeRunner(num_blocks=256, on_run=gate))
    task = asyncio.ensure_future(read(engine.submit(request("a", max_tokens=900))))
    await asyncio.to_thread(gate.entered.wait, 20)
    asyncio.get_running_loop().call_later(0.02, gate.leave.set)
    assert await engine.drain(0.0) == 1
    assert (await task)[-1].finish_reason is FinishReason.ABORT


async def test_stopping_ends_open_streams_with_an_error(start) -> None:
    gate = Gate()
    engine = start(FakeRunner(num_blocks=256, on_run=gate))
    stream = engine.submit(request("a", max_tokens=900))
    await asyncio.to_thread(gate.entered.wait, 20)
    stopping = asyncio.ensure_future(engine.stop())
    await asyncio.sleep(0)  # the order to stop is given before the step may end
    gate.leave.set()
    await stopping
    outputs = await read(stream)
    assert isinstance(outputs[-1].error, EngineError)
    engine.engine.abort("a")
    engine.engine.step()


async def test_an_idle_engine_sleeps(start) -> None:
    """Its thread uses no CPU time between requests: it waits for a notification, it does not poll."""
    engine = start()
    await read(engine.submit(request("a")))
    waits: list[float | None] = []
    asked = threading.Event()
    original = engine._wake.wait

    def wait(timeout: float | None = None) -> bool:
        waits.append(timeout)
        asked.set()
        return original(timeout)

    engine._wake.wait = wait  # type: ignore[method-assign]
    await read(engine.submit(request("b")))
    await asyncio.to_thread(asked.wait, 20)
    assert waits == [None]


async def test_a_deadline_ends_a_request_that_waits_for_its_batch(start) -> None:
    engine = start(batching="dynamic", batch_max_delay=1000.0)
    late = replace(request("a"), deadline=engine.clock() + 0.01)
    outputs = await read(engine.submit(late))
    assert "deadline" in str(outputs[-1].error)
