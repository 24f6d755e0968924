"""The promise: a request's logits have the same bits whatever else is in the batch, however its prompt is chunked,
whether its prefix was cached, whether it was preempted, whether its tokens were guessed, and however many threads run."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno import _native
from forno.cache import KvCache
from forno.config import SchedulerConfig
from forno.request import Row, StepPlan
from forno.runner.cpu import CpuRunner
from forno.scheduler import Scheduler
from tests.helpers.models import tokens_for
from tests.helpers.runners import BLOCK, MAX_ROWS, Model, request

SHARED = tokens_for(99, BLOCK)
"""A prefix of one whole block, common to some prompts."""
PROMPTS = (tokens_for(1, 70), [*SHARED, *tokens_for(2, 9)], [*SHARED, *tokens_for(3, 33)], tokens_for(4, 1))
GENERATED = 4
BLOCKS_EACH = 3
KINDS = {
    "f32": ("f32", "float32"),
    "bf16": ("bf16", "bf16"),
    "q8_0": ("q8_0", "bf16"),
    "q4_1, int8 cache": ("q4_1", "int8"),
    "w8a8": ("w8a8", "bf16"),
    "materialized": ("bf16", "bf16"),
}

Bits = dict[int, bytes]
"""Position to the raw bits of its logits."""


@dataclass
class Sequence:
    """One request on its way through random steps."""

    number: int
    slot: int
    blocks: tuple[int, ...]
    position: int = 0
    tokens: list[int] = field(default_factory=list)

    @property
    def known(self) -> int:
        return len(PROMPTS[self.number]) + len(self.tokens)

    @property
    def is_done(self) -> bool:
        return len(self.tokens) == GENERATED

    def row(self, count: int, drafts: tuple[int, ...] = ()) -> Row:
        """``drafts`` are verified where the row reaches the last known token."""
        count = min(count, self.known - self.position)
        if self.position + count < self.known:
            return Row(self.slot, self.position, count, self.blocks, False)
        drafts = drafts[: GENERATED - len(self.tokens) - 1]
        return Row(self.slot, self.position, count + len(drafts), self.blocks, True, drafts)


@cache
def model(kind: str) -> Model:
    format, kv = KINDS[kind]
    return Model.tiny("llama-llama3-biases", format, kv, materialized=kind == "materialized")


@cache
def runner(kind: str, isa: str, threads: int) -> CpuRunner:
    made = model(kind).runner(threads, isa)
    made.executor.capture_logits(True)
    return made


def admit(runner: CpuRunner, number: int) -> Sequence:
    slot = runner.admit(request(PROMPTS[number], prompt_logprobs=0, temperature=1.0, seed=number))
    return Sequence(number, slot, own_blocks(number))


def own_blocks(number: int) -> tuple[int, ...]:
    return tuple(range(number * BLOCKS_EACH, (number + 1) * BLOCKS_EACH))


def preempt(sequence: Sequence) -> None:
    """Everything so far, sampled tokens too, will be computed again, in blocks of its own."""
    sequence.position, sequence.blocks = 0, own_blocks(sequence.number)


Part = tuple[Sequence, int, tuple[int, ...]]
"""Sequence, tokens to compute, drafts to verify."""


def step(runner: CpuRunner, parts: list[Part], copies: tuple[tuple[int, int], ...] = ()) -> dict[int, Bits]:
    """Run one step; returns each sequence's new logits by its number."""
    rows = [sequence.row(count, drafts) for sequence, count, drafts in parts]
    result = runner.run(StepPlan(tuple(rows), copies))
    assert not result.errors
    logits = iter(runner.executor.logits())
    bits: dict[int, Bits] = {}
    for (sequence, _, _), row, tokens in zip(parts, rows, result.tokens, strict=True):
        end = row.start + row.num_tokens
        scored = [p for p in range(row.start, end) if p + 1 < len(PROMPTS[sequence.number])]
        wanted = scored + (list(range(end - 1 - len(row.drafts), end)) if row.sample else [])
        found = {position: next(logits).tobytes() for position in wanted}
        sequence.position = end - len(row.drafts) + max(len(tokens) - 1, 0)
        sequence.tokens += tokens
        bits[sequence.number] = {position: raw for position, raw in found.items() if position < sequence.position}
    return bits


@cache
def alone(kind: str, isa: str, number: int) -> tuple[Bits, tuple[int, ...]]:
    """Every position's logits of one request on its own: its prompt in one step, one thread."""
    one = runner(kind, isa, 1)
    sequence, bits = admit(one, number), {}
    while not sequence.is_done:
        bits.update(step(one, [(sequence, MAX_ROWS, ())])[number])
    one.release(sequence.slot)
    return bits, tuple(sequence.tokens)


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
@settings(max_examples=12, derandomize=True)
def test_bits_do_not_depend_on_company_chunks_hits_preemption_drafts_or_threads(
    kind: str, isa: str, data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    shared = runner(kind, isa, data.draw(st.sampled_from([1, 2, 4])))
    live = {number: admit(shared, number) for number in rng.permutation(len(PROMPTS)).tolist()}
    finished: dict[int, Sequence] = {}
    while live:
        copies = hit_prefix(rng, {**finished, **live})
        chosen = rng.permutation(list(live)).tolist()[: int(rng.integers(1, len(live) + 1))]
        bits = step(shared, [(live[n], int(rng.integers(1, 21)), drafts_of(rng, kind, isa, live[n])) for n in chosen], copies)
        for number in chosen:
            expected, tokens = alone(kind, isa, number)
            for position, found in bits[number].items():
                assert found == expected[position], f"request {number}, position {position}"
            sequence = live[number]
            assert tuple(sequence.tokens) == tokens[: len(sequence.tokens)]
            if sequence.is_done:
                finished[number] = live.pop(number)
            elif rng.random() < 0.1:
                preempt(sequence)
    for sequence in finished.values():
        shared.release(sequence.slot)


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_a_copied_part_of_a_block(kind: str, isa: str) -> None:
    """As scheduled: the copy's source goes on differently, once full and once as its request left it unfinished."""
    common = tokens_for(5, 13)
    asked = [*SHARED, *common, *tokens_for(6, 20)]
    for other in ([*SHARED, *common, *tokens_for(7, 40)], [*SHARED, *common, *tokens_for(8, 3)]):
        bits, starts = scheduled(runner(kind, isa, 2), [asked, other, asked], caching=False)
        assert starts == [0, 0, 0]
        hit_bits, starts = scheduled(runner(kind, isa, 2), [other, asked], caching=True)
        assert starts == [0, BLOCK + len(common)]
        assert hit_bits[1] == bits[0] == bits[2]


def scheduled(runner: CpuRunner, prompts: list[list[int]], caching: bool) -> tuple[list[list[bytes]], list[int]]:
    """One request after the other through a scheduler: the logits of each one's steps, and where its first row began."""
    config = SchedulerConfig(max_num_batched_tokens=MAX_ROWS)
    scheduler = Scheduler(config, KvCache(runner.num_blocks, BLOCK, caching), runner.max_model_len)
    bits: list[list[bytes]] = []
    starts: list[int] = []
    for prompt in prompts:
        wanted = request(prompt, max_tokens=GENERATED)
        slot = runner.admit(wanted)
        scheduler.add(wanted, slot)
        bits.append([])
        while scheduler.has_work:
            plan = scheduler.schedule()
            if not bits[-1]:
                starts.append(plan.rows[0].start)
            scheduler.commit(plan, runner.run(plan))
            bits[-1].append(runner.executor.logits().tobytes())
        runner.release(slot)
    return bits, starts


def drafts_of(rng: np.random.Generator, kind: str, isa: str, sequence: Sequence) -> tuple[int, ...]:
    """Guesses of the next tokens, of which none, some or all are right."""
    guess = list(alone(kind, isa, sequence.number)[1][len(sequence.tokens) :])[: int(rng.integers(0, GENERATED))]
    if guess and rng.random() < 0.5:
        guess[int(rng.integers(0, len(guess)))] = int(rng.integers(0, 96))
    return tuple(guess)


def hit_prefix(rng: np.random.Generator, sequences: dict[int, Sequence]) -> tuple[tuple[int, int], ...]:
    """Sometimes let a request that has not begun take the shared block from its neighbour: in place, or a copy, of which
    only the first tokens may be of use."""
    for taker, owner in ((1, 2), (2, 1)):
        ready = sequences[owner].position >= BLOCK and sequences[taker].position == 0 and not sequences[taker].is_done
        if ready and rng.random() < 0.7:
            sequences[taker].position = BLOCK
            if rng.random() < 0.5:
                sequences[taker].position = int(rng.integers(1, BLOCK + 1))
                return ((sequences[owner].blocks[0], sequences[taker].blocks[0]),)
            sequences[taker].blocks = (sequences[owner].blocks[0], *sequences[taker].blocks[1:])
    return ()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", _native.available_isas())
def test_reading_a_shared_prefix_once_changes_no_bits(isa: str, threads: int) -> None:
    """Five requests on the same 128 cached tokens, two to six tokens of their own, then decoding together."""
    prefix = tokens_for(5, 4 * BLOCK)
    prompts = [[*prefix, *tokens_for(10 + i, 2 + i)] for i in range(5)]
    made = model("bf16").runner(threads, isa, max_rows=160)
    made.executor.capture_logits(True)

    def steps(share: bool) -> list[bytes]:
        made.executor.share_prefixes(share)
        slots = [made.admit(request(prompt)) for prompt in prompts]
        tables = [(0, 1, 2, 3, 4 + i) for i in range(5)]
        made.run(StepPlan((Row(slots[0], 0, len(prefix), tables[0], False),)))
        first = [Row(s, 128, len(p) - 128, t, True) for s, p, t in zip(slots, prompts, tables, strict=True)]
        logits = []
        for step in range(4):
            rows = [Row(r.request, r.start + r.num_tokens + step - 1, 1, r.blocks, True) for r in first] if step else first
            made.run(StepPlan(tuple(rows)))
            logits.append(made.executor.logits()[:5].tobytes())
        for slot in slots:
            made.release(slot)
        return logits

    assert steps(True) == steps(False)
