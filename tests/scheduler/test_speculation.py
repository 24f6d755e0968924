"""Drafts in steps: what they may take, whom they never concern, and when they stop."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from forno.config import SpeculativeConfig
from forno.request import FinishReason
from forno.scheduler import speculation
from tests.helpers.fake_runner import unbatched

NGRAM = SpeculativeConfig(speculative="ngram")
LOOP = (1, 2, 3, 1, 2, 3, 1)
"""A prompt from which something is guessed at once."""


class Anything:
    """A constraint that allows every token."""

    def fill_mask(self, mask: Any) -> None:
        mask[:] = 0xFFFFFFFF

    def accept(self, token: int) -> None:
        pass

    def is_done(self) -> bool:
        return False


def drafts(b) -> list[int]:
    """Draft tokens of each step so far."""
    return [sum(len(row.drafts) for row in plan.rows) for plan in b.runner.plans]


def test_fewer_steps_and_the_same_tokens(bench) -> None:
    plain, b = bench(vocab=1), bench(vocab=1, speculative=NGRAM)
    for each in (plain, b):
        request = each.add("a", (0, 0, 0), max_tokens=40)
        each.finish()
        assert each.tokens("a") == unbatched(request, 1)[0]
        assert each.end("a").finish_reason is FinishReason.LENGTH
    assert len(plain.runner.plans) == 40
    assert len(b.runner.plans) < 12
    assert drafts(plain) == [0] * 40
    end, counters = b.end("a"), b.scheduler.counters
    assert counters.drafts == sum(count > 0 for count in drafts(b))
    assert end.num_draft_tokens == counters.draft_tokens == sum(drafts(b))
    assert end.num_accepted_tokens == sum(counters.accepted_tokens) == 40 - len(b.runner.plans)
    assert sorted(counters.accepted_tokens, reverse=True) == counters.accepted_tokens


def test_no_draft_beyond_what_was_asked_for(bench) -> None:
    b = bench(vocab=1, speculative=NGRAM)
    for count in (1, 2, 3):
        b.add(str(count), (0, 0, 0), max_tokens=count)
    b.finish()
    for count in (1, 2, 3):
        assert len(b.tokens(str(count))) == count
        assert b.end(str(count)).num_draft_tokens <= count - 1


def test_a_stop_token_ends_a_run_of_drafts(bench) -> None:
    b = bench(vocab=1, speculative=NGRAM)
    b.add("a", (0, 0, 0), max_tokens=40, min_tokens=5, stop_token_ids=(0,))
    b.finish()
    assert b.tokens("a") == (0,) * 6
    assert b.end("a").finish_reason is FinishReason.STOP


def test_what_a_constraint_allows_is_not_guessed(bench) -> None:
    b = bench(vocab=1, speculative=NGRAM)
    b.add("a", (0, 0, 0), max_tokens=10, constraint=Anything())
    b.finish()
    assert drafts(b) == [0] * 10


def test_nothing_is_guessed_in_steps_of_many_rows(bench) -> None:
    b = bench(vocab=1, speculative=SpeculativeConfig(speculative="ngram", speculative_max_rows=4))
    for id in "abcd":
        b.add(id, (0, 0, 0), max_tokens=10)
    b.add("e", (0, 0, 0), max_tokens=30)
    b.finish()
    for plan, count in zip(b.runner.plans, drafts(b), strict=True):
        assert plan.num_tokens <= 4 or count == 0
    assert sum(drafts(b)) > 0


def test_no_more_rows_than_a_step_may_have(bench) -> None:
    b = bench(vocab=1, speculative=NGRAM, max_num_batched_tokens=5, max_num_seqs=3)
    for id in "abc":
        b.add(id, (0, 0, 0), max_tokens=20)
    b.finish()
    assert max(plan.num_tokens for plan in b.runner.plans) == 5
    assert sum(drafts(b)) > 0


def test_drafts_take_no_block_that_somebody_may_need(bench) -> None:
    """Two requests fill the cache exactly; neither is ever preempted for the other's drafts."""
    b = bench(vocab=1, num_blocks=8, caching=False, speculative=NGRAM)
    for id in "ab":
        b.add(id, (0, 0, 0), max_tokens=14)
    b.finish()
    assert b.scheduler.counters.preemptions == 0
    assert sum(drafts(b)) > 0


def test_where_guesses_fail_they_end_but_for_a_probe(bench) -> None:
    b = bench(num_blocks=256, max_model_len=1000, speculative=NGRAM)
    b.runner.vocab = 7  # pairs occur again all the time, and what follows is anybody's guess
    b.add("a", LOOP, max_tokens=900)
    b.scheduler._speculation.cost.observe(1, 1.0)
    b.scheduler._speculation.cost._more = 0.5  # rows are dear, and all steps take the same
    b.runner.seconds = 0.0
    b.finish()
    counts = drafts(b)
    late = counts[len(counts) // 2 :]
    assert sum(counts[:20]) > 3
    assert 0 < sum(late) <= len(late) / speculation.PROBE + 1
    assert set(late) == {0, 1}


@pytest.mark.parametrize("more", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("odds", [(0.9, 0.6), (0.99, 0.99), (0.3, 0.05), (0.8, 0.0)])
def test_as_many_as_raise_the_tokens_per_second(
    bench, monkeypatch: pytest.MonkeyPatch, more: float, odds: tuple[float, float]
) -> None:
    """Held against all ways of giving two sequences up to eight drafts each."""
    monkeypatch.setattr(speculation, "MARGIN", 1.0)
    spec = bench(speculative=NGRAM).scheduler._speculation
    spec.cost.observe(1, 1.0)
    spec.cost._more = more
    rows = 5

    def rate(counts: tuple[int, int]) -> float:
        tokens = rows + sum(chance ** (i + 1) for chance, count in zip(odds, counts, strict=True) for i in range(count))
        return tokens / (1.0 + more * (rows - 1 + sum(counts)))

    fitting = [pair for pair in itertools.product(range(9), repeat=2) if rows + sum(pair) <= spec.max_rows]
    shares = spec._shares({"a": ([0] * 8, odds[0]), "b": ([0] * 8, odds[1])}, rows, rows)
    assert rate((shares["a"], shares["b"])) == pytest.approx(max(map(rate, fitting)))
