"""Explanations: an exact partition whatever happened, and each part in its place."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.cache.misses import Miss
from forno.observe.explain import CURRENT_STEP, ENGINE, Kind, Phase, explain
from forno.observe.record import RequestRecord, Shortage
from forno.observe.recorder import Recorder
from tests.helpers.fake_runner import some_tokens
from tests.observe.timed_engine import MASK, STEP, TOKEN, Timed, check, random_run


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_parts_are_a_partition_whatever_happens(seed: int) -> None:
    timed = random_run(seed)
    for record in timed.recorder.finished():
        found = timed.explain(record.id)
        check(found)
        again = sum(chunk.tokens for chunk in found.chunks if chunk.again)
        assert (again > 0) <= (record.num_preemptions > 0)
        if Kind.UNRECORDED in found.parts or record.reason == "abort":
            continue
        assert Kind.PREEMPTED not in found.parts or record.num_preemptions
        first = [chunk.tokens for chunk in found.chunks if not chunk.again]
        assert sum(first) >= record.num_prompt - record.num_cached if not record.num_preemptions else True
        if not record.num_preemptions:
            assert [a.start + a.tokens == b.start for a, b in pairwise(found.chunks)] == [True] * (len(found.chunks) - 1)
            assert found.chunks[0].start == record.num_cached
            assert sum(first) == record.num_prompt - record.num_cached
            assert found.decode_steps < record.num_generated


def test_the_random_runs_contain_what_they_are_to_test() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        timed = random_run(seed)
        for record in timed.recorder.finished():
            found = timed.explain(record.id)
            seen.update(found.parts.keys())
            seen.update(found.waited_for.keys())
            seen[record.reason] += 1
    wanted = {*Kind, *Shortage, CURRENT_STEP, ENGINE, "abort", "length"}
    assert wanted <= seen.keys(), wanted - seen.keys()


def test_one_request_alone() -> None:
    timed = Timed()
    timed.add("a", 10, 3)
    timed.run()
    timed.send("a", 0.5)
    found = timed.explain("a")
    check(found)
    assert found.of(Kind.PREFILL) == pytest.approx(STEP + 10 * TOKEN, rel=0.01)
    assert found.of(Kind.DECODE) == pytest.approx(2 * (STEP + TOKEN), rel=0.01)
    assert found.of(Kind.RESPONDING) == pytest.approx(0.5)
    assert found.of(Kind.OVERHEAD) == pytest.approx(2e-4, rel=0.2), "between its three steps"
    assert [s.phase for s in found.phases()] == [
        Phase.ARRIVING,
        Phase.WAITING,
        Phase.PREFILL,
        Phase.DECODE,
        Phase.LEAVING,
    ]
    assert found.decode_alone == pytest.approx(found.of(Kind.DECODE))
    assert Kind.SLOWED not in found.parts
    assert Kind.BESIDE not in found.parts


def test_queued_behind_whom_and_for_what() -> None:
    timed = Timed(max_num_seqs=1)
    timed.add("a", 4, 3)
    timed.step()
    timed.add("b", 4, 2)
    timed.run()
    found = timed.explain("b")
    check(found)
    assert found.waited_for[Shortage.SEATS] == pytest.approx(2 * (STEP + TOKEN), rel=0.01)
    assert found.parts[Kind.QUEUED].by == {"a": pytest.approx(found.waited_for[Shortage.SEATS])}


def test_whoever_comes_during_a_step_waits_for_its_end() -> None:
    timed = Timed()
    timed.add("a", 16, 2)
    timed.runner.on_run = lambda plan: timed.add("b", 4, 1) if len(timed.runner.requests) == 1 else None
    timed.step()
    timed.runner.on_run = None
    timed.run()
    found = timed.explain("b")
    check(found)
    assert found.waited_for.keys() == {CURRENT_STEP, ENGINE}


def test_decoding_slowed_by_the_prompt_of_another() -> None:
    timed = Timed()
    timed.add("a", 4, 4)
    timed.step()
    timed.add("long", 30, 1)
    timed.run()
    found = timed.explain("a")
    check(found)
    assert found.of(Kind.DECODE) == pytest.approx(3 * (STEP + TOKEN), rel=0.01)
    assert found.of(Kind.SLOWED) == pytest.approx(30 * TOKEN, rel=0.01)
    assert found.parts[Kind.SLOWED].by == {"long": pytest.approx(30 * TOKEN, rel=0.01)}
    other = timed.explain("long")
    assert other.of(Kind.PREFILL) == pytest.approx(2 * STEP + 30 * TOKEN, rel=0.01)
    assert other.of(Kind.BESIDE) == pytest.approx(2 * TOKEN, rel=0.01)
    assert other.parts[Kind.BESIDE].by.keys() == {"a"}
    assert [(c.start, c.tokens, c.others) for c in other.chunks] == [(0, 15, 1), (15, 15, 1)]


def test_decoding_in_a_batch() -> None:
    timed = Timed(max_num_batched_tokens=64)
    for id in "abcd":
        timed.add(id, 4, 3)
    timed.run()
    found = timed.explain("a")
    assert found.decode_rows == 4
    assert found.of(Kind.DECODE) == pytest.approx(2 * (STEP + 4 * TOKEN), rel=0.01)
    assert found.decode_alone == pytest.approx(2 * (STEP + TOKEN), rel=0.01)


def test_preempted_and_computed_again() -> None:
    timed = Timed(num_blocks=6, caching=False)
    for id in ("a", "b"):
        timed.add(id, 8, 12)
    timed.run()
    record, found = timed.recorder.request("b"), timed.explain("b")
    check(found)
    assert record.num_preemptions == 1
    again = record.preempted[0][1] - record.resumed[0][1] + 1  # with the token that it was about to compute
    assert sum(c.tokens for c in found.chunks if c.again) == again > 0
    assert found.of(Kind.RECOMPUTE) == pytest.approx(STEP + again * TOKEN, rel=0.2)
    waited = record.resumed[0][0] - record.preempted[0][0]
    assert found.of(Kind.PREEMPTED) == pytest.approx(waited, rel=0.01)
    assert found.parts[Kind.PREEMPTED].by.keys() == {"a"}
    assert Phase.PREEMPTED in [s.phase for s in found.phases()]


def test_a_prefix_that_another_computes() -> None:
    timed = Timed(long_prefill_token_threshold=8)
    prompt = some_tokens("x", 24)
    timed.add("a", prompt, 1)
    timed.add("b", prompt, 1)
    timed.run()
    found = timed.explain("b")
    check(found)
    assert found.waited_for[Shortage.PREFIX] > 0.9 * found.of(Kind.QUEUED)
    assert found.parts[Kind.QUEUED].by.keys() == {"a"}
    assert found.record.num_cached == 23


def test_constraints_hold_up_everybody() -> None:
    timed = Timed()
    timed.add("a", 4, 3)
    timed.add("b", 4, 3, constrained=True)
    timed.run()
    for id in ("a", "b"):
        found = timed.explain(id)
        check(found)
        assert found.of(Kind.CONSTRAINED) == pytest.approx(3 * MASK)
        assert found.parts[Kind.CONSTRAINED].by.keys() == {"b"}


def test_a_slow_client() -> None:
    timed = Timed()
    timed.add("a")
    timed.run()
    timed.send("a", 2.0, blocked=1.5)
    found = timed.explain("a")
    check(found)
    assert found.of(Kind.CLIENT) == pytest.approx(1.5)
    assert found.of(Kind.RESPONDING) == pytest.approx(0.5)


def test_what_fell_out_of_the_window_is_said() -> None:
    timed = Timed(max_steps=4)
    timed.add("a", 4, 12)
    timed.run()
    found = timed.explain("a")
    check(found)
    assert found.parts.keys() >= {Kind.UNRECORDED, Kind.DECODE}
    assert found.decode_steps == 4
    timed.add("b", 4, 12)
    timed.run()
    found = timed.explain("a")
    check(found)
    assert found.of(Kind.UNRECORDED) > 0.9 * (found.record.finished - found.record.arrival), "all of its steps are gone"


def test_one_that_still_runs_is_explained_up_to_now() -> None:
    timed = Timed(max_num_seqs=1)
    timed.add("a", 4, 50)
    timed.add("b")
    timed.step(5)
    for id in ("a", "b"):
        found = timed.explain(id)
        check(found)
        assert found.end == timed.clock.now
    assert found.of(Kind.QUEUED) > 0.9 * found.seconds


def test_one_that_was_refused() -> None:
    timed = Timed()
    record = RequestRecord("a", 0, 0, 0, begun=1.0, received=1.5, tokenized=1.75, arrival=1.75)
    timed.clock.now = 2.0
    timed.recorder.refuse(record, ValueError("no"))
    record.sent = 2.5
    found = timed.explain("a")
    check(found)
    assert found.parts.keys() == {Kind.READING, Kind.TOKENIZING, Kind.RESPONDING}


def test_dynamic_batching_waits_for_a_batch_to_fill() -> None:
    timed = Timed(batching="dynamic", batch_max_delay=0.05)
    timed.add("a")
    timed.run()
    found = timed.explain("a", idle=Shortage.BATCH)
    check(found)
    assert found.waited_for == {Shortage.BATCH: pytest.approx(0.05, rel=0.01)}


def test_without_a_cost_model_tokens_decide() -> None:
    timed = Timed()
    timed.add("a", 4, 4)
    timed.step()
    timed.add("long", 30, 1)
    timed.run()
    record = timed.recorder.request("a")
    found = explain(record, timed.recorder.steps(), 0.0, timed.clock.now)
    check(found)
    mixed = [s for s in timed.recorder.steps() if len(s.requests) == 2]
    assert found.of(Kind.SLOWED) == pytest.approx(sum((s.computed - s.planned) * 15 / 24 for s in mixed), rel=0.01)


def test_misses_are_in_the_record() -> None:
    timed = Timed()
    prompt = some_tokens("x", 12)
    timed.add("a", prompt, 1)
    timed.run()
    timed.add("b", (*prompt[:6], 249, *prompt[7:]), 1)
    timed.run()
    lookup = timed.explain("b").lookup
    assert (lookup.reason, lookup.matched, lookup.position) == (Miss.DIVERGED, 6, 6)


def test_no_prompt_and_no_output_is_remembered() -> None:
    """Everything that the recorder holds, to the last object: none of it is a token sequence or a text of a request."""
    timed = Timed()
    marker = (211, 17, 193, 5, 229, 131, 47, 83)
    timed.add("a", marker, 6)
    timed.run()
    made = tuple(t for output in timed.outputs for t in output.token_ids)
    assert len(made) == 6
    reached: dict[int, object] = {}
    todo: list[object] = [timed.recorder]
    while todo:
        thing = todo.pop()
        if id(thing) in reached or isinstance(thing, type) or callable(thing):
            continue
        reached[id(thing)] = thing
        todo += gc.get_referents(thing)
    things = list(reached.values())
    assert any(isinstance(thing, RequestRecord) for thing in things)
    assert not any(type(thing).__name__ in ("Request", "RequestOutput", "Sequence", "StepPlan") for thing in things)
    for thing in things:
        if isinstance(thing, (tuple, list)):
            assert tuple(thing[: len(marker)]) != marker
            assert tuple(thing[: len(made)]) != made
    rows = timed.recorder._rows
    text = "".join(f",{n}" for n in rows[: timed.recorder._head])
    for tokens in (marker, made):
        assert "".join(f",{n}" for n in tokens[:3]) not in text


def test_memory_is_bounded_as_stated() -> None:
    recorder = Recorder()
    fixed = sys.getsizeof(recorder._steps) + sys.getsizeof(recorder._rows)
    assert fixed < 5.4 * 2**20
    record = RequestRecord("chatcmpl-" + 32 * "x", 1, 100, 100, begun=1.5, received=1.5, tokenized=1.5, arrival=1.5)
    assert sys.getsizeof(record) < 400
