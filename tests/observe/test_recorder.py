"""The recorder: what it says of steps and requests, what it forgets, and that nobody reads half a step."""

from __future__ import annotations

import gc
import threading

import pytest

from forno.cache import KvCache
from forno.cache.misses import Lookup, Miss
from forno.config import SchedulerConfig
from forno.engine.engine import Engine
from forno.errors import QueueFullError
from forno.observe.record import Pressure, RequestRecord, Shortage
from forno.observe.recorder import ROWS_PER_STEP, Recorder
from forno.observe.silent import Silent
from forno.request import FinishReason, Request, RequestOutput, Row, SamplingParams, StepPlan, StepResult
from forno.scheduler import Scheduler
from tests.helpers.fake_runner import FakeRunner, some_tokens

BLOCK = 4


class Clock:
    """Every look at it takes a millisecond, so that no two times are equal."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class Idle:
    def pressure(self) -> Pressure:
        return (0, None, 0, 0)


def engine(num_blocks: int = 64, **config: object) -> tuple[Engine, Recorder]:
    runner, clock = FakeRunner(num_blocks, BLOCK), Clock()
    recorder = Recorder(clock)
    cache = KvCache(num_blocks, BLOCK)
    settings = SchedulerConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 16, **config})
    scheduler = Scheduler(settings, cache, 200, clock, recorder)
    return Engine(runner, scheduler, recorder=recorder), recorder


def request(id: str, prompt: int = 4, max_tokens: int = 4) -> Request:
    return Request(id, some_tokens(id, prompt), SamplingParams(max_tokens=max_tokens))


def run(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def rows(count: int, start: int = 0) -> StepPlan:
    return StepPlan(tuple(Row(i, start, 1, (0,), True) for i in range(count)))


def write(recorder: Recorder, count: int, start: int = 0) -> None:
    times = (recorder.clock(), recorder.clock(), recorder.clock(), recorder.clock())
    recorder.step(rows(count, start), StepResult(((1,),) * count, seconds=0.5), times, Idle())


def test_a_step_as_it_was() -> None:
    made, recorder = engine(max_num_seqs=2)
    for id, prompt in (("a", 10), ("b", 10), ("c", 3)):
        made.add_request(request(id, prompt))
    made.step()
    (step,) = recorder.steps()
    assert [r.id for r in step.requests] == ["a", "b"]
    assert (step.number, step.starts, step.tokens, step.outputs) == (1, (0, 0), (10, 6), 1)
    assert (step.waiting, step.shortage) == (1, Shortage.SEATS)
    assert step.seconds == made.runner.seconds
    assert step.start < step.planned < step.computed < step.end
    assert (step.kv_reserved, step.kv_used) == (3 * BLOCK + 2 * BLOCK, 16)


def test_guesses_are_outputs_too() -> None:
    made, recorder = engine()
    made.add_request(request("a"))
    drafted = StepPlan((Row(0, 4, 3, (0, 1), True, (7, 8)), Row(0, 0, 4, (2,), False)))
    recorder.step(drafted, StepResult(((1,), ())), (1.0, 2.0, 3.0, 4.0), Idle())
    (step,) = recorder.steps()
    assert (step.outputs, step.num_drafts, step.tokens) == (3, 2, (3, 4))


def test_a_request_as_it_was() -> None:
    made, recorder = engine()
    made.add_request(request("a", 10, 3))
    made.add_request(request("b", 6, 2))
    run(made)
    first, second = recorder.request("a"), recorder.request("b")
    assert [second.ahead, second.running, second.serial] == [1, 0, 2]
    assert (first.num_prompt, first.max_tokens, first.num_generated, first.reason) == (10, 3, 3, "length")
    assert first.arrival < first.scheduled < first.first_token < first.finished
    assert first.lookup == Lookup(0, Miss.NEVER_SEEN)
    assert [r.id for r in recorder.finished()] == ["b", "a"]
    assert [r.id for r in recorder.finished(1)] == ["a"]
    assert recorder.live() == []


@pytest.mark.parametrize(
    ("config", "prompts", "shortage"),
    [
        ({"max_num_seqs": 1}, (4, 4), Shortage.SEATS),
        ({}, (40, 4), Shortage.TOKENS),
        ({"num_blocks": 4}, (9, 9), Shortage.BLOCKS),
        ({"batching": "static"}, (4,), Shortage.BATCH),
        ({"enable_chunked_prefill": False}, (10, 10), Shortage.TOKENS),
    ],
)
def test_why_the_first_one_waits(config: dict, prompts: tuple[int, ...], shortage: Shortage) -> None:
    made, recorder = engine(**config)
    for i, prompt in enumerate(prompts):
        made.add_request(request(str(i), prompt))
    made.step()
    if shortage is Shortage.BATCH:  # whoever comes after a batch began
        made.add_request(request("late"))
        made.step()
    assert recorder.steps()[-1].shortage is shortage
    run(made)
    assert recorder.steps()[-1].shortage is None


def test_waiting_for_a_prefix() -> None:
    made, recorder = engine(long_prefill_token_threshold=8)
    prompt = some_tokens("x", 20)
    for id in ("a", "b"):
        made.add_request(Request(id, prompt, SamplingParams(max_tokens=2)))
    made.step()
    assert recorder.steps()[-1].shortage is Shortage.PREFIX
    run(made)
    assert [owner for _, owner in recorder.request("b").parked] == ["a"]
    assert recorder.request("b").num_cached == 16


def test_preempted_and_resumed() -> None:
    made, recorder = engine(num_blocks=6)
    for id in ("a", "b"):
        made.add_request(request(id, 8, 12))
    run(made)
    record = recorder.request("b")
    assert record.num_preemptions == len(record.preempted) == len(record.resumed) > 0
    assert all(p[0] < r[0] for p, r in zip(record.preempted, record.resumed, strict=True))


def test_old_steps_are_forgotten() -> None:
    recorder = Recorder(Clock(), max_steps=8)
    for i in range(2):
        recorder.arrive(request(str(i)), i, 0, 0)
    assert recorder.horizon == 0.0
    for i in range(20):
        write(recorder, 2, start=i)
    steps = recorder.steps()
    assert [s.number for s in steps] == list(range(13, 21))
    assert [s.starts for s in steps] == [(i, i) for i in range(12, 20)]
    assert recorder.horizon == steps[0].start
    assert [s.number for s in recorder.steps(since=18)] == [19, 20]
    assert [s.number for s in recorder.steps(last=3)] == [18, 19, 20]
    assert [s.number for s in recorder.steps(since=19, last=3)] == [20]
    middle = recorder.during(steps[3].computed, steps[5].start)
    assert [s.number for s in middle] == [16, 17]
    assert [s.number for s in recorder.during(0.0, 1e9)] == [s.number for s in steps]
    assert recorder.during(1e9, 2e9) == []


def test_many_rows_push_out_steps_sooner() -> None:
    recorder = Recorder(Clock(), max_steps=8)
    for i in range(50):
        recorder.arrive(request(str(i)), i, 0, 0)
    for i in range(8):
        write(recorder, 50, start=i)
    steps = recorder.steps()
    assert [s.number for s in steps] == [7, 8], f"{ROWS_PER_STEP * 8} rows hold two steps of 50"
    assert all(s.starts == (s.number - 1,) * 50 and s.tokens == (1,) * 50 for s in steps)
    assert [r.id for r in steps[0].requests] == [str(i) for i in range(50)]
    assert recorder.horizon == steps[0].start


@pytest.mark.parametrize("widths", [(50,), (1, 50), (16,), (60, 60, 1)])
def test_the_horizon_is_the_oldest_step_that_can_be_read(widths: tuple[int, ...]) -> None:
    recorder = Recorder(Clock(), max_steps=8)
    for i in range(60):
        recorder.arrive(request(str(i)), i, 0, 0)
    for i in range(40):
        write(recorder, widths[i % len(widths)])
        steps = recorder.steps()
        assert recorder.horizon == (0.0 if steps[0].number == 1 else steps[0].start)


def test_old_requests_are_forgotten_and_named_by_number() -> None:
    recorder = Recorder(Clock(), max_requests=3)
    for i in range(5):
        recorder.arrive(request(str(i)), 0, 0, 0)
        write(recorder, 1)
        recorder.finish(RequestOutput(str(i), "", (), finish_reason=FinishReason.STOP), 0)
    assert [r.id for r in recorder.finished()] == ["2", "3", "4"]
    assert recorder.request("1") is None
    assert [s.requests[0].id for s in recorder.steps()] == ["request 1", "request 2", "2", "3", "4"]


def test_refusals_do_not_push_out_what_was_served() -> None:
    recorder = Recorder(Clock(), max_requests=8)
    recorder.arrive(request("served"), 0, 0, 0)
    recorder.finish(RequestOutput("served", "", (), finish_reason=FinishReason.STOP), 0)
    for i in range(100):
        recorder.refuse(recorder.announce(request(str(i))), QueueFullError("full"))
    assert [r.id for r in recorder.finished()] == ["served", "98", "99"]
    assert [r.id for r in recorder.finished(2)] == ["98", "99"]
    assert recorder.request("97") is None
    recorder.arrive(request("later"), 0, 0, 0)
    recorder.finish(RequestOutput("later", "", (), finish_reason=FinishReason.STOP), 0)
    assert [r.id for r in recorder.finished(3)] == ["98", "99", "later"], "in the order in which they ended"


def test_an_id_used_again_means_the_later_request() -> None:
    recorder = Recorder(Clock(), max_requests=2)
    for tokens in (1, 2, 3):
        recorder.arrive(request("same", 4, tokens), 0, 0, 0)
        assert recorder.request("same").max_tokens == tokens
        recorder.finish(RequestOutput("same", "", (), finish_reason=FinishReason.STOP), 0)
    assert recorder.request("same").max_tokens == 3
    assert len(recorder.finished()) == 2


def test_answers_of_one_response() -> None:
    recorder = Recorder(Clock())
    for i in range(2):
        recorder.announce(request(f"x-{i}")).response = "x"
    recorder.arrive(request("x-0"), 0, 0, 0)
    recorder.finish(RequestOutput("x-0", "", (), finish_reason=FinishReason.STOP), 0)
    assert [r.id for r in recorder.answers("x")] == ["x-0", "x-1"]
    assert [r.id for r in recorder.answers("x-1")] == ["x-1"]
    assert recorder.answers("y") == []
    recorder.arrive(request("xyz"), 0, 0, 0)
    assert recorder.beginning("x") == ["x", "xyz"], "a response once, however many answers it has"
    assert recorder.beginning("xy") == ["xyz"]
    assert recorder.beginning("y") == []


def test_no_id_is_nobodys() -> None:
    recorder = Recorder(Clock())
    recorder.arrive(request("alone"), 0, 0, 0)
    assert [r.id for r in recorder.answers("alone")] == ["alone"]
    assert recorder.answers("") == []


def test_refused_requests_are_remembered() -> None:
    recorder = Recorder(Clock())
    record = recorder.announce(request("a"))
    recorder.refuse(record, ValueError("with the prompt in it"))
    assert (record.reason, record.error) == ("refused", "ValueError")
    recorder.refuse(RequestRecord("b", 0, 0, 0), ValueError())
    assert [r.id for r in recorder.finished()] == ["a", "b"]
    assert recorder.live() == []


def test_readers_never_see_half_a_step() -> None:
    recorder = Recorder(Clock(), max_steps=16)
    for i in range(40):
        recorder.arrive(request(str(i)), i, 0, 0)
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            for step in recorder.steps():
                if set(step.starts) != {step.number} or step.outputs != len(step.requests):
                    wrong.append(step)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 3000):
        write(recorder, 1 + number % 40, start=number)
    done.set()
    reader.join()
    assert not wrong


def test_steps_give_the_garbage_collector_nothing_to_visit() -> None:
    recorder = Recorder(Clock(), max_steps=512)
    for i in range(4):
        recorder.arrive(request(str(i)), i, 0, 0)
    gc.collect()
    before = len(gc.get_objects())
    for i in range(500):
        write(recorder, 4, start=i)
    gc.collect()
    assert len(gc.get_objects()) - before < 50


def test_without_recording_nothing_is_kept() -> None:
    made, _ = engine()
    made.recorder = made.scheduler._recorder = Silent()
    made.add_request(request("a"))
    run(made)
    record = made.recorder.announce(request("b"))
    made.recorder.refuse(record, ValueError())
    assert not made.recorder.recording


def test_a_refusal_leaves_a_live_request_of_the_same_id() -> None:
    made, recorder = engine()
    made.add_request(request("a"))
    recorder.refuse(RequestRecord("a", 0, 0, 0), ValueError("ids must be unique"))
    run(made)
    assert [(r.id, r.reason) for r in recorder.finished()] == [("a", "refused"), ("a", "length")]
    assert recorder.request("a").reason == "length"
