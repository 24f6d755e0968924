"""Which sequences of a step verify drafts, and how many: as many as raise the tokens per second that can be expected.

A step of few rows waits for the weights' bytes, so a row more costs little; of many rows, each costs its arithmetic. What
it costs here and now is learned from the steps.
Drafts come last: they take no budget, no seat and no block that somebody else needs, and they change no output.
"""

from __future__ import annotations

from forno.cache import KvCache
from forno.config import SpeculativeConfig
from forno.scheduler.drafter import Drafter, updated
from forno.scheduler.row_cost import RowCost
from forno.scheduler.sequence import Sequence
from forno.scheduler.step import Counters, Step

FIRST_ODDS = 0.7
"""The chance of a right guess before anything was learned."""
SHARED_RATE = 0.05
"""Weight of the newest token in the estimate that new sequences start from."""
MARGIN = 1.3
"""How many times its cost a draft must be worth: both are estimates, and the last drafts that pay gain next to nothing."""
PROBE = 32
"""Matches that a sequence passes over, times the sequences of the step, before it tries one token again."""


class Speculation:
    """Adds drafts to steps. ``counters`` are the scheduler's."""

    def __init__(self, config: SpeculativeConfig, cache: KvCache, counters: Counters, max_num_tokens: int) -> None:
        self.config, self.cache, self.counters = config, cache, counters
        self.max_rows = min(config.speculative_max_rows, max_num_tokens) if config.speculative == "ngram" else 0
        self.cost = RowCost()
        counters.accepted_tokens = [0] * config.num_speculative_tokens if self.max_rows else []
        self._odds = [FIRST_ODDS] * (config.prompt_lookup_max + 1)

    def add(self, step: Step) -> None:
        """Fill ``step.drafts``, if the step is small enough for some."""
        rows = sum(step.tokens.values())
        if rows >= self.max_rows:
            return
        sampling = [s for s, count in step.tokens.items() if count >= s.pending]
        guesses = {s: self._guess(s, step) for s in sampling}
        for sequence, count in self._shares(guesses, rows, len(sampling)).items():
            assert sequence.drafter is not None
            sequence.drafter.skipped = 0 if count else sequence.drafter.skipped + 1
            drafts = guesses[sequence][0][:count]
            if drafts and self.cache.grow(sequence.table, len(sequence.tokens) + count):
                step.drafts[sequence] = tuple(drafts)

    def observe(self, rows: int, seconds: float) -> None:
        """A step of ``rows`` took ``seconds``."""
        if rows <= self.max_rows:
            self.cost.observe(rows, seconds)

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Take in how many of the drafts were right."""
        drafter = sequence.drafter
        assert drafter is not None
        self.counters.drafts += 1
        self.counters.draft_tokens += drafted
        for position in range(accepted):
            self.counters.accepted_tokens[position] += 1
        self._odds[drafter.length] = updated(self._odds[drafter.length], drafted, accepted, SHARED_RATE)
        drafter.learn(drafted, accepted)

    def _guess(self, sequence: Sequence, step: Step) -> tuple[list[int], float]:
        """Tokens that may follow, and the chance that the first is right."""
        most = min(self.config.num_speculative_tokens, self._room(sequence, len(step.tokens)))
        if most <= 0 or sequence.request.constraint is not None:  # what a constraint allows next depends on every token
            return [], 0.0
        drafter = sequence.drafter
        if drafter is None:
            drafter = Drafter(self.config.prompt_lookup_min, self.config.prompt_lookup_max, self._odds)
            sequence.drafter = drafter
        guess = drafter.guess(sequence.tokens, most)
        if drafter.skipped >= PROBE * len(step.tokens):
            return guess[:1], 1.0
        return guess, drafter.chance

    def _room(self, sequence: Sequence, num_sequences: int) -> int:
        """Draft tokens that ``sequence`` can use. The one after the last draft must not be more than was asked for; and a
        block may be taken ahead of time only as long as everybody could."""
        wanted = sequence.request.sampling.max_tokens - sequence.num_generated - 1
        if self.cache.num_free > num_sequences:
            return wanted
        return min(wanted, len(sequence.table.blocks) * self.cache.block_size - len(sequence.tokens))

    def _shares(self, guesses: dict[Sequence, tuple[list[int], float]], rows: int, expected: float) -> dict[Sequence, int]:
        """Drafts per sequence that has a guess: the likeliest first, while each adds more to the ``expected`` tokens of
        the step than to its time."""
        shares = {s: 0 for s, (guess, _) in guesses.items() if guess}
        chances = [(guesses[s][1] ** (i + 1), s) for s in shares for i in range(len(guesses[s][0]))]
        chances.sort(key=lambda entry: entry[0], reverse=True)
        for chance, sequence in chances[: self.max_rows - rows]:
            if chance <= MARGIN * expected * self.cost.ratio(rows):
                break
            shares[sequence] += 1
            expected += chance
            rows += 1
        return shares
