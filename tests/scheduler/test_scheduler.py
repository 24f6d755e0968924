"""Each rule of the scheduler by one example; ``test_random_runs`` has them all at once."""

from __future__ import annotations

import pytest

from forno.errors import DeadlineError, NumericsError, PromptTooLongError, QueueFullError, RequestError
from forno.request import FinishReason, StepPlan
from tests.helpers.fake_runner import unbatched


def test_decodes_go_first_and_chunks_fill_the_budget(bench) -> None:
    b = bench(max_num_batched_tokens=16)
    b.add("short", 3, max_tokens=9)
    assert b.step() == {"short": 3}
    b.add("long", 40)
    assert b.step() == {"short": 1, "long": 15}
    assert b.step() == {"short": 1, "long": 15}
    assert b.step() == {"short": 1, "long": 10}
    assert b.step() == {"short": 1, "long": 1}


def test_a_prompt_lengthens_others_steps_only_so_much(bench) -> None:
    b = bench(max_num_batched_tokens=256, num_blocks=800, max_model_len=600, max_num_seqs=32)

    def clock_step(plan: StepPlan) -> None:
        b.runner.seconds = 0.002 + 0.001 * plan.num_tokens

    b.runner.on_run = clock_step
    for i in range(20):
        b.add(f"decode{i}", 2, max_tokens=100)
    for _ in range(10):
        b.step()
    alone = b.runner.seconds
    b.add("long", 500, max_tokens=2)
    chunks = []
    while sum(chunks) < 500:
        chunks.append(b.step()["long"])
        assert b.runner.seconds < 3 * alone
    assert len(chunks) > 10
    b.finish()
    b.add("alone", 300)
    assert b.step() == {"alone": 256}, "nobody decodes: the whole budget"


def test_a_long_prompt_is_throttled_by_the_threshold(bench) -> None:
    b = bench(long_prefill_token_threshold=5)
    b.add("long", 12)
    b.add("other", 8)
    assert b.step() == {"long": 5, "other": 5}
    assert b.step() == {"long": 5, "other": 3}
    assert b.step() == {"other": 1, "long": 2}


def test_without_chunks_a_prompt_enters_whole_or_waits(bench) -> None:
    b = bench(enable_chunked_prefill=False, max_num_batched_tokens=16)
    b.add("a", 10)
    b.add("b", 10)
    b.add("c", 3)
    assert b.step() == {"a": 10}, "b does not fit besides a, and c does not overtake b"
    assert b.step() == {"a": 1, "b": 10, "c": 3}


def test_seats_are_limited(bench) -> None:
    b = bench(max_num_seqs=2)
    for id in "abc":
        b.add(id, 2, max_tokens=2)
    assert b.step() == {"a": 2, "b": 2}
    assert b.step() == {"a": 1, "b": 1}
    assert b.step() == {"c": 2}


@pytest.mark.parametrize("caching", [True, False])
def test_equal_prompts_are_computed_once(bench, caching: bool) -> None:
    """Prefix caching on: 8 clients with one prompt. Off: 8 children of one request. Neither is a special case."""
    b = bench(caching=caching, max_num_batched_tokens=16)
    prompt = tuple(range(41))
    for i in range(8):
        b.add(str(i), (*prompt, i), group="one request", max_tokens=1)
    b.finish()
    assert b.runner.computed == 42 + 7
    assert [b.end(str(i)).num_cached_tokens for i in range(8)] == [0] + [41] * 7


def test_the_common_part_of_a_block_is_copied(bench) -> None:
    b = bench()
    b.add("a", (*range(10), 50, 51, 52), max_tokens=1)
    b.finish()
    request = b.add("b", (*range(10), 60, 61, 62), max_tokens=3)
    assert b.step() == {"b": 3}
    (row,), copies = b.runner.plans[-1].rows, b.runner.plans[-1].copies
    assert (row.start, len(copies)) == (10, 1)
    assert copies[0][1] == row.blocks[2]
    assert copies[0][0] not in row.blocks
    b.finish()
    assert [len(plan.copies) for plan in b.runner.plans] == [0, 1, 0, 0]
    assert b.tokens("b") == unbatched(request)[0]
    assert b.end("b").num_cached_tokens == 10
    assert b.engine.stats().prefix_cache_hits == 10


def test_the_next_turn_copies_the_block_that_the_last_one_left_unfinished(bench) -> None:
    b = bench()
    first = b.add("first", 9, max_tokens=3)
    b.finish()
    second = b.add("second", (*first.prompt, *b.tokens("first"), 7, 7), max_tokens=3)
    assert b.step() == {"second": 3}, "the last sampled token was never fed"
    b.finish()
    assert b.tokens("second") == unbatched(second)[0]


def test_a_prompt_of_whole_blocks_computes_its_last_token_only(bench) -> None:
    b = bench()
    for id in ("a", "b"):
        b.add(id, tuple(range(12)), max_tokens=1)
        b.finish()
    assert b.runner.computed == 12 + 1


def test_a_source_may_be_handed_out_again_in_the_same_step(bench) -> None:
    """Copies come first, in order: each source is read before it is copied into or computed into."""
    b = bench(num_blocks=3)
    for first in (30, 10, 20):
        b.add(f"old {first}", tuple(range(first, first + 4)), max_tokens=1)
        b.finish()
    requests = [b.add(f"new {first}", (first, first + 1, first + 2, 99), max_tokens=1) for first in (10, 20, 40)]
    b.step()
    plan = b.runner.plans[-1]
    (x, y), (z, also_x) = plan.copies
    assert x == also_x, "the first copy's source is the second one's destination"
    assert [row.blocks for row in plan.rows] == [(y,), (x,), (z,)], "the second one's source is computed into"
    for request in requests:
        assert b.tokens(request.id) == unbatched(request)[0]


def test_the_last_free_block_is_its_own_copy(bench) -> None:
    b = bench(num_blocks=1)
    b.add("a", (1, 2, 3, 4), max_tokens=1)
    b.finish()
    request = b.add("b", (1, 2, 3, 9), max_tokens=1)
    assert b.step() == {"b": 1}
    assert b.runner.plans[-1].copies == ()
    assert b.tokens("b") == unbatched(request)[0]


def test_nobody_else_shares_with_prefix_caching_off(bench) -> None:
    b = bench(caching=False)
    for id in ("a", "b"):
        b.add(id, tuple(range(20)), max_tokens=1)
        b.finish()
    assert b.runner.computed == 40


def test_a_waiter_takes_over_when_the_owner_is_aborted(bench) -> None:
    b = bench(max_num_batched_tokens=12, long_prefill_token_threshold=8)
    prompt = tuple(range(30))
    b.add("owner", prompt)
    b.add("waiter", prompt)
    assert b.step() == {"owner": 8}
    assert b.engine.stats().waiting_for_prefix == 1
    b.engine.abort("owner")
    assert b.step() == {"waiter": 8}
    assert b.scheduler.running[0].num_cached == 8
    b.finish()
    assert b.tokens("waiter") == unbatched(b.add("again", prompt))[0]


def test_those_behind_a_waiter_go_ahead(bench) -> None:
    b = bench(max_num_batched_tokens=16)
    b.add("owner", tuple(range(12)))
    b.add("waiter", (*range(12), 5))
    b.add("behind", 3)
    assert b.step() == {"owner": 12, "behind": 3}


def test_a_request_never_waits_for_a_worse_ranked_one(bench) -> None:
    b = bench(scheduling_policy="priority", max_num_batched_tokens=8)
    prompt = tuple(range(30))
    b.add("low", prompt, priority=5)
    b.step()
    b.add("high", prompt, priority=1)
    assert b.step() == {"high": 8}, "nor does it wait for a worse one's prompt"


def test_prompt_logprobs_skip_the_cache(bench) -> None:
    b = bench()
    prompt = tuple(range(14))
    b.add("a", prompt)
    b.finish()
    b.add("b", prompt, prompt_logprobs=1)
    b.finish()
    assert b.end("b").num_cached_tokens == 0
    assert [lp.token for output in b.outputs["b"] for lp in output.prompt_logprobs] == list(prompt[1:])
    assert b.engine.stats().prefix_cache_queries == 14


def test_scoring_a_prompt_generates_nothing(bench) -> None:
    b = bench()
    b.add("a", 20, prompt_logprobs=0, max_tokens=0)
    b.finish()
    assert b.end("a").finish_reason is FinishReason.LENGTH
    assert (b.tokens("a"), len(b.end("a").prompt_logprobs)) == ((), 19)


def test_the_latest_loses_its_blocks_and_comes_back(bench) -> None:
    b = bench(num_blocks=5, max_num_batched_tokens=32)
    first = b.add("first", 8, max_tokens=9)
    second = b.add("second", 7, max_tokens=9)
    b.add("third", 8, max_tokens=1)
    assert b.step() == {"first": 8, "second": 7}, "third would need two blocks"
    b.step()
    assert b.running() == ["first", "second"]
    while "second" in b.running():
        b.step()
    assert b.engine.stats().preemptions == 1
    assert b.scheduler.waiting.first().request is second, "in front of third"
    b.finish()
    assert b.tokens("first") == unbatched(first)[0]
    assert b.tokens("second") == unbatched(second)[0]


def test_priority_takes_blocks_from_a_worse_class(bench) -> None:
    b = bench(num_blocks=6, scheduling_policy="priority", max_num_batched_tokens=64)
    low = b.add("low", 18, priority=9, max_tokens=4)
    b.step()
    b.add("peer", 18, priority=9, max_tokens=4)
    b.step()
    assert b.running() == ["low"], "an equal class waits"
    b.add("high", 18, priority=1, max_tokens=4)
    assert b.step() == {"high": 18}
    assert b.engine.stats().preemptions == 1
    b.finish()
    assert b.tokens("low") == unbatched(low)[0]
    assert [r.id for r in b.recorder.finished()] == ["high", "low", "peer"]


def test_nobody_is_preempted_in_vain(bench) -> None:
    b = bench(num_blocks=6, scheduling_policy="priority", max_num_batched_tokens=64)
    b.add("middle", 14, priority=5, max_tokens=2)
    b.add("low", 6, priority=9, max_tokens=2)
    b.step()
    b.add("high", 18, priority=5, max_tokens=2)
    b.step()
    assert b.engine.stats().preemptions == 0


def test_fcfs_ignores_priority(bench) -> None:
    b = bench(max_num_seqs=1)
    b.add("first", 4, priority=9, max_tokens=1)
    b.add("second", 4, priority=0, max_tokens=1)
    assert b.step() == {"first": 4}


def test_a_newcomer_does_not_take_the_block_that_a_running_request_needs(bench) -> None:
    b = bench(num_blocks=4, max_num_batched_tokens=32)
    b.add("a", 4, max_tokens=12)
    b.step()
    b.add("b", 8, max_tokens=2)
    b.step()
    for _ in range(3):
        b.add(f"late {_}", 1, max_tokens=1)
        b.step()
    b.finish()
    assert b.end("a").finish_reason is FinishReason.LENGTH
    assert b.engine.stats().preemptions <= 1


@pytest.mark.parametrize("when", ["waiting", "running"])
def test_an_expired_request_is_an_error_and_holds_nothing(bench, when: str) -> None:
    b = bench(max_num_seqs=1)
    b.add("other", 4, max_tokens=50)
    if when == "running":
        b.engine.abort("other")
    b.add("late", 4, max_tokens=50, deadline=b.now + 0.045)
    for _ in range(6):
        b.step()
    assert isinstance(b.end("late").error, DeadlineError)
    assert b.end("late").finish_reason is FinishReason.ERROR
    assert when in str(b.end("late").error)
    assert b.running() == (["other"] if when == "waiting" else [])


def test_an_aborted_request_holds_nothing_after_the_next_step(bench) -> None:
    b = bench()
    b.add("a", 30)
    b.step()
    assert b.engine.abort("a")
    assert not b.engine.abort("a")
    b.step()
    assert b.scheduler.cache.num_free == b.scheduler.cache.num_blocks
    assert b.end("a").finish_reason is FinishReason.ABORT
    assert not b.runner.requests


def test_one_bad_row_harms_nobody_else(bench) -> None:
    b = bench()
    b.runner.fail[("bad", 1)] = NumericsError("NaN")
    b.add("bad", 4)
    good = b.add("good", 4)
    b.finish()
    assert isinstance(b.end("bad").error, NumericsError)
    assert b.tokens("good") == unbatched(good)[0]


def test_several_tokens_per_row_stop_where_one_would(bench) -> None:
    b = bench(burst=5)
    request = b.add("a", 6, max_tokens=7)
    alone = unbatched(request)[0]
    stopped = b.add("b", request.prompt, max_tokens=7, stop_token_ids=(alone[2],))
    b.finish()
    assert b.tokens("a") == alone
    assert b.tokens("b") == unbatched(stopped)[0]
    assert b.end("b").stop_reason == alone[2]


def test_min_tokens_and_ignore_eos(bench) -> None:
    b = bench()
    alone = unbatched(b.add("probe", 5, max_tokens=8))[0]
    prompt = b.engine.scheduler._by_id["probe"].request.prompt
    b.add("eos", prompt, max_tokens=8, eos_token_ids=(alone[1],))
    b.add("late", prompt, max_tokens=8, eos_token_ids=(alone[1],), min_tokens=4)
    b.add("deaf", prompt, max_tokens=8, eos_token_ids=(alone[1],), ignore_eos=True)
    b.finish()
    assert b.tokens("eos") == alone[:2]
    assert b.end("eos").stop_reason is None
    assert len(b.tokens("late")) > 4
    assert b.tokens("deaf") == alone


def test_a_completed_constraint_stops(bench) -> None:
    class Two:
        def fill_mask(self, mask) -> None: ...
        def accept(self, token: int) -> None: ...
        def is_done(self) -> bool:
            return len(b.outputs.get("a", ())) == 1

    b = bench()
    b.add("a", 4, max_tokens=9, constraint=Two())
    b.finish()
    assert (len(b.tokens("a")), b.end("a").finish_reason) == (2, FinishReason.STOP)


def test_what_can_never_run_is_refused_with_numbers(bench) -> None:
    b = bench(num_blocks=10, max_model_len=100)
    with pytest.raises(PromptTooLongError, match=r"90 prompt tokens .* make 101.* context of 100"):
        b.add("a", 90, max_tokens=11)
    with pytest.raises(PromptTooLongError, match=r"40 prompt tokens .*40 tokens \(10 blocks of 4\)"):
        b.add("a", 40, max_tokens=2)
    with pytest.raises(RequestError, match="empty"):
        b.add("a", ())
    assert not b.runner.requests
    assert not b.engine.has_work
    request = b.add("a", 40, max_tokens=1)
    b.finish()
    assert b.tokens("a") == unbatched(request)[0]


def test_a_prompt_longer_than_a_step_needs_chunks(bench) -> None:
    b = bench(enable_chunked_prefill=False, max_num_batched_tokens=16)
    with pytest.raises(PromptTooLongError, match=r"17 tokens.*16 of one step"):
        b.add("a", 17)


def test_the_queue_is_bounded(bench) -> None:
    b = bench(max_num_seqs=1, max_num_queued_reqs=2)
    for id in "abc":
        b.add(id)
    with pytest.raises(QueueFullError) as refused:
        b.add("d")
    assert refused.value.retry_after == 1.0
    for _ in range(5):
        b.step()
    b.add("d")
    b.finish()


def test_the_queue_is_bounded_in_tokens(bench) -> None:
    b = bench(max_num_queued_tokens=50)
    b.add("big", 60)
    with pytest.raises(QueueFullError, match="61 prompt tokens"):
        b.add("b", 1)
    b.step()
    b.add("b", 50)
    with pytest.raises(QueueFullError) as refused:
        b.add("c", 1)
    assert refused.value.retry_after == 1.0
    b.scheduler.admission.observe(10, 1.0)
    assert 1.0 <= b.scheduler.admission.retry_after(b.scheduler.waiting) <= 60.0


def test_live_ids_are_unique(bench) -> None:
    b = bench()
    b.add("a")
    with pytest.raises(RequestError, match="unique"):
        b.add("a")
    b.engine.abort("a")
    with pytest.raises(RequestError, match="unique"):
        b.add("a")
    b.step()
    b.add("a")
    b.finish()


def test_the_record_tells_the_story(bench) -> None:
    b = bench(max_num_batched_tokens=12, long_prefill_token_threshold=8)
    b.add("a", tuple(range(10)), max_tokens=2)
    b.add("b", (*range(10), 3), max_tokens=2)
    b.finish()
    record = b.recorder.request("b")
    assert [owner for _, owner in record.parked] == ["a"]
    assert (record.num_prompt, record.num_cached, record.num_generated, record.reason) == (11, 8, 2, "length")
    times = [record.arrival, record.parked[0][0], record.scheduled, record.first_token, record.finished]
    assert times == sorted(times)


def test_block_ids_are_rebuilt_only_when_a_block_is_added(bench) -> None:
    b = bench()
    b.add("a", 5, max_tokens=20)
    b.step()
    seen = []
    for _ in range(8):
        b.step()
        seen.append(b.runner.plans[-1].rows[0].blocks)
    assert len({id(blocks) for blocks in seen}) == len({len(blocks) for blocks in seen}) == 3
