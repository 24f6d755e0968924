"""Advice: the change that undoes the largest part comes first, with the seconds that it is about."""

from __future__ import annotations

import pytest

from forno.config import SchedulerConfig
from forno.observe.advice import Advice, Settings, advise
from forno.observe.explanation import Explanation, Kind, Part
from forno.observe.record import RequestRecord, Shortage
from tests.helpers.fake_runner import some_tokens
from tests.observe.timed_engine import STEP, TOKEN, Timed, random_run, step_cost


def advice(timed: Timed, id: str, count: int = 2, **settings: object) -> list[Advice]:
    config = timed.engine.scheduler.config
    known = Settings(config, kv_tokens=timed.engine.scheduler.cache.capacity, **settings)
    return advise(timed.explain(id), known, step_cost, count)


def flags(found: list[Advice]) -> list[str]:
    return [a.flag for a in found]


def test_seats() -> None:
    timed = Timed(max_num_seqs=1)
    for id in "abc":
        timed.add(id, 4, 12)
    timed.run()
    first = advice(timed, "c")[0]
    assert first.flag == "--max-num-seqs 4"
    found = timed.explain("c")
    waited, decode = found.waited_for[Shortage.SEATS], found.of(Kind.DECODE)
    crowded = decode * ((STEP + 4 * TOKEN) / (STEP + TOKEN) - 1)
    assert first.saves == pytest.approx(waited - crowded, rel=0.01), "what the larger batch costs is subtracted"


def test_tokens_of_steps() -> None:
    timed = Timed(max_num_batched_tokens=16)
    timed.add("a", 4, 30)
    timed.step()
    timed.add("long", 150, 1)
    timed.add("b", 4, 1)
    timed.run()
    found = timed.explain("b")
    waited = found.waited_for[Shortage.TOKENS]
    assert waited == pytest.approx(10 * (STEP + 16 * TOKEN), rel=0.05)
    given = {a.flag: a.saves for a in advice(timed, "b", count=99)}
    assert given["--max-num-batched-tokens 32"] == pytest.approx(waited * (1 - 15 / 24) / 2, rel=0.05), "half of the rest"


def test_memory() -> None:
    timed = Timed(num_blocks=6)
    for id in ("a", "b"):
        timed.add(id, 8, 12)
    timed.run()
    found = timed.explain("b")
    first = advice(timed, "b", kv_bytes=24 << 30)[0]
    assert first.flag == "--kv-cache-memory 44", "24 GiB hold 24 tokens, and it needs 20 more"
    assert first.saves >= found.of(Kind.PREEMPTED, Kind.RECOMPUTE)
    assert "preempted" in first.change


def test_prompts_of_others_that_smaller_chunks_would_put_off() -> None:
    timed = Timed(mixed_step_stretch=0.0, max_num_batched_tokens=64)
    timed.add("a", 4, 6)
    timed.step()
    timed.add("long", 150, 1)
    timed.run()
    found = timed.explain("a")
    assert (found.slowed_steps, found.slowed_tokens, found.decode_steps) == (3, 150, 5)
    first = advice(timed, "a")[0]
    assert first.flag == "--long-prefill-token-threshold 12"
    assert first.saves == pytest.approx(found.of(Kind.SLOWED) * (1 - 5 / 3 * 12 / 50)), "five small chunks for three large"


def test_prompts_of_others_that_come_in_any_case() -> None:
    timed = Timed(mixed_step_stretch=0.0, max_num_batched_tokens=64)
    timed.add("a", 4, 40)
    timed.step()
    timed.add("long", 150, 1)
    timed.run()
    assert not [a for a in advice(timed, "a", count=99) if "threshold" in a.flag], "they only take longer"


def test_a_gentler_stretch_changes_nothing_below_the_least_chunk() -> None:
    timed = Timed(mixed_step_stretch=1.75, max_num_batched_tokens=32)
    timed.add("a", 4, 4)
    timed.step()
    timed.add("long", 150, 1)
    timed.run()
    assert timed.explain("a").of(Kind.SLOWED) > 0
    assert not [a for a in advice(timed, "a", count=99) if "stretch" in a.flag]


def test_a_prompt_that_differs_early() -> None:
    timed = Timed(max_num_batched_tokens=64)
    prompt = some_tokens("x", 60)
    timed.add("a", prompt, 1)
    timed.run()
    timed.add("b", (*prompt[:6], 249, *prompt[7:]), 1)
    timed.run()
    first = advice(timed, "b")[0]
    assert "token 6 of 60" in first.change
    assert first.at_most
    assert first.saves == pytest.approx(timed.explain("b").of(Kind.PREFILL), rel=0.1)


def test_prefix_caching_off() -> None:
    timed = Timed(caching=False, max_num_batched_tokens=64)
    timed.add("a", 60, 1)
    timed.run()
    assert flags(advice(timed, "a", enable_prefix_caching=False))[0] == "--enable-prefix-caching"
    assert "--enable-prefix-caching" not in flags(advice(timed, "a"))


def test_a_slow_client() -> None:
    timed = Timed()
    timed.add("a")
    timed.run()
    timed.send("a", 9.0, blocked=8.0)
    first = advice(timed, "a")[0]
    assert (first.saves, first.flag) == (pytest.approx(8.0), "")
    assert "client" in first.change


def test_batching() -> None:
    timed = Timed(batching="static", max_num_seqs=2)
    for id in "abc":
        timed.add(id, 4, 9)
        timed.step()
    timed.run()
    assert flags(advice(timed, "c"))[0] == "--batching continuous"


def test_constraints() -> None:
    timed = Timed()
    timed.add("a", 4, 9)
    timed.add("b", 4, 9, constrained=True)
    timed.run()
    assert "schemas of others" in advice(timed, "a")[0].change
    assert "its own constraint" in advice(timed, "b")[0].change


def test_advice_never_promises_more_than_there_is() -> None:
    for seed in range(25):
        timed = random_run(seed)
        for record in timed.recorder.finished():
            found = timed.explain(record.id)
            given = advise(found, Settings(SchedulerConfig(max_num_seqs=2), kv_tokens=40), step_cost, count=99)
            assert all(0 < a.saves < found.seconds for a in given)
            named = [a.flag.split(" ")[0] for a in given if a.flag]
            assert len(named) == len(set(named)), "an option goes one way only"
            assert len(advise(found, Settings(), step_cost)) <= 2


def explained(parts: dict[Kind, float], **known: object) -> Explanation:
    """An explanation of so many seconds of each kind."""
    record = RequestRecord("a", 1, 100, 10, num_cached=99, num_generated=3)
    found = Explanation(record, 0.0, sum(parts.values()), **known)
    found.parts = {kind: Part(kind, seconds) for kind, seconds in parts.items()}
    return found


def test_asking_for_less_comes_after_what_costs_nobody_anything() -> None:
    found = explained({Kind.DECODE: 6.0, Kind.CLIENT: 1.0})
    first, second = advise(found, Settings())
    assert (first.saves, second.saves) == (1.0, pytest.approx(1.5))
    assert first.change.startswith("Read the stream faster")


def test_an_option_goes_one_way_only() -> None:
    waited = {"waited_for": {Shortage.TOKENS: 4.0}, "waited_for_decodes": 4.0}
    slowed = {"decode_steps": 10, "slowed_steps": 10, "slowed_tokens": 1000}
    found = explained({Kind.QUEUED: 4.0, Kind.SLOWED: 4.0}, **waited, **slowed)
    given = advise(found, Settings(SchedulerConfig(mixed_step_stretch=2.0)), count=99)
    assert [a.flag for a in given if a.flag.startswith("--mixed-step-stretch")] == ["--mixed-step-stretch 1.25"]


def test_waiting_with_lost_blocks_is_not_about_seats() -> None:
    found = explained({Kind.QUEUED: 1.0, Kind.PREEMPTED: 3.0}, waited_for={Shortage.SEATS: 4.0})
    given = {a.flag.split(" ")[0]: a.saves for a in advise(found, Settings(), count=99)}
    assert given["--max-num-seqs"] == 1.0
