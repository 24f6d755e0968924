"""Static and dynamic batches on the same scheduler; time is the test's."""

from __future__ import annotations

import pytest


def test_a_static_batch_runs_to_its_end(bench) -> None:
    b = bench(batching="static", max_num_seqs=2, max_num_batched_tokens=32)
    b.add("short", 2, max_tokens=1)
    b.add("long", 2, max_tokens=4)
    b.add("next", 2, max_tokens=1)
    assert b.step() == {"short": 2, "long": 2}
    assert [b.step() for _ in range(3)] == [{"long": 1}] * 3, "the empty seat stays empty"
    assert b.step() == {"next": 2}


def test_a_static_batch_may_need_several_steps_to_get_in(bench) -> None:
    b = bench(batching="static", max_num_seqs=3, max_num_batched_tokens=8)
    for id in "abcd":
        b.add(id, 8, max_tokens=3)
    b.step()
    b.step()
    b.step()
    b.step()
    assert {id for id in "abcd" if id in b.outputs} == {"a", "b", "c"}
    b.finish()


def test_a_dynamic_batch_starts_when_full(bench) -> None:
    b = bench(batching="dynamic", max_num_seqs=2, batch_max_delay=5.0)
    b.add("a", 2, max_tokens=1)
    assert b.engine.idle_for() == pytest.approx(5.0)
    assert b.step() == {}
    b.add("b", 2, max_tokens=1)
    assert b.engine.idle_for() == 0.0
    assert b.step() == {"a": 2, "b": 2}


def test_a_dynamic_batch_starts_after_its_delay(bench) -> None:
    b = bench(batching="dynamic", max_num_seqs=2, batch_max_delay=5.0)
    b.add("a", 2, max_tokens=1)
    b.now += 4.0
    assert b.step() == {}
    assert b.engine.idle_for() == pytest.approx(0.99)
    b.now += 1.0
    assert b.engine.idle_for() == 0.0
    assert b.step() == {"a": 2}
    assert b.engine.idle_for() is None


def test_a_deadline_wakes_a_batch_that_waits(bench) -> None:
    b = bench(batching="dynamic", max_num_seqs=2, batch_max_delay=5.0)
    b.add("a", 2, deadline=b.now + 2.0)
    assert b.engine.idle_for() == pytest.approx(2.0)
    b.now += 2.0
    b.step()
    assert b.end("a").error is not None


def test_preempted_members_get_their_seat_back(bench) -> None:
    b = bench(batching="static", num_blocks=5, max_num_seqs=2, max_num_batched_tokens=32)
    b.add("a", 8, max_tokens=8)
    b.add("b", 7, max_tokens=8)
    b.add("c", 1, max_tokens=8)
    b.finish()
    assert b.engine.stats().preemptions == 1
    finished = [r.id for r in b.recorder.finished()]
    assert finished == ["a", "b", "c"]
