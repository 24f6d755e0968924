"""The scheduler: which requests compute how many tokens in the next step.

Rules, from which everything else follows:

- *One token, one rule.* A sequence has pending tokens; a step computes some of them. Prefill, chunk, decode, prefix
  hit and resumed request differ only in numbers.
- *Rank.* (class, arrival, serial) orders all live sequences. A running one may take blocks from any worse-ranked
  running one; a waiting one only from a worse class. A sequence waits only for better-ranked ones.
- *Progress.* Admission refuses what cannot fit into the whole cache alone. So the best-ranked running sequence always
  gets its blocks, and when nothing runs the first in line is always admitted: every step with work computes something.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable

from forno.cache import KvCache, Match
from forno.config import SchedulerConfig, SpeculativeConfig
from forno.errors import DeadlineError
from forno.observe.record import Pressure, Shortage
from forno.observe.silent import Silent
from forno.request import FinishReason, Request, Row, StepPlan, StepResult
from forno.scheduler.admission import Admission
from forno.scheduler.batching import BATCHINGS
from forno.scheduler.deadlines import Deadlines
from forno.scheduler.in_flight import InFlight
from forno.scheduler.pacing import Pacing
from forno.scheduler.sequence import Sequence, State, Update
from forno.scheduler.speculation import Speculation
from forno.scheduler.step import END_OF_LINE, Counters, Rank, Step
from forno.scheduler.waiting import WaitingLine, by_rank


class Scheduler:
    """Not thread-safe. ``schedule`` and ``commit`` alternate; ``add`` and ``abort`` may come at any time between."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KvCache,
        max_model_len: int,
        clock: Callable[[], float] = time.monotonic,
        recorder: Silent | None = None,
        speculative: SpeculativeConfig | None = None,
    ) -> None:
        self.config = config
        self.cache = cache
        self.clock = clock
        self.admission = Admission(config, cache, max_model_len)
        self.running: list[Sequence] = []
        """In rank order: the last one is the first to lose its blocks."""
        self.waiting = WaitingLine()
        self.counters = Counters()
        self._recorder = Silent() if recorder is None else recorder
        self._batching = BATCHINGS[config.batching](config)
        self._pacing = Pacing(config)
        self._in_flight = InFlight()
        self._speculation = Speculation(speculative or SpeculativeConfig(), cache, self.counters, config.max_num_batched_tokens)
        self._by_id: dict[str, Sequence] = {}
        self._by_index: dict[int, Sequence] = {}
        self._deadlines = Deadlines(self._by_id)
        self._ended: list[Update] = []
        """Requests that ended outside a step (aborted, expired); the next ``commit`` reports them."""
        self._serial = 0
        self._step = Step(0, 0)
        """The latest one."""

    # -- requests in and out ------------------------------------------------------------------------------------

    def check(self, request: Request, arriving: int = 0) -> None:
        """Raises what ``add`` would. Only reads; another thread may call it for a first, quick no.

        ``arriving`` requests passed this check but were not added yet.
        """
        self.admission.check_size(request)
        self.admission.check_queue(request, self.waiting, len(self.running), arriving)

    def add(self, request: Request, index: int) -> Sequence:
        """Queue a request that the runner knows as ``index``.

        Raises ``PromptTooLongError`` or ``RequestError`` if it can never run, ``QueueFullError`` if too many wait.
        The id must not be live; the engine sees to that.
        """
        assert request.id not in self._by_id, "ids of live requests are unique"
        self.check(request)
        self._serial += 1
        rank = (request.priority if self.config.scheduling_policy == "priority" else 0, request.arrival, self._serial)
        longest = len(request.prompt) + max(0, request.sampling.max_tokens - 1)  # the last token is never fed back
        sequence = Sequence(request, index, rank, self.cache.open(request.cache_salt, request.group, longest))
        self._by_id[request.id] = self._by_index[index] = sequence
        self.waiting.push(sequence)
        self._deadlines.add(sequence)
        return sequence

    def abort(self, id: str) -> bool:
        """End a request; its blocks are free at once, the next ``commit`` reports it. False if it is not live."""
        return self.end(id, FinishReason.ABORT)

    def end(self, id: str, reason: FinishReason, error: Exception | None = None) -> bool:
        """End a request for a reason found outside the scheduler. False if it is not live."""
        sequence = self._by_id.get(id)
        if sequence is None:
            return False
        self._finish(sequence)
        self._ended.append(Update(sequence, self.clock(), finish_reason=reason, error=error))
        return True

    def retire(self, sequence: Sequence, num_generated: int) -> None:
        """End a request whose last output was just made from an ``Update`` (a stop string); nothing more is reported.

        Tokens after the first ``num_generated`` were never said: they came in one step with the one that ended it.
        """
        del sequence.tokens[sequence.num_prompt + num_generated :]
        sequence.computed = min(sequence.computed, len(sequence.tokens))
        if sequence.state is not State.FINISHED:
            self._finish(sequence)

    def __contains__(self, id: str) -> bool:
        """Whether a request of this id is live."""
        return id in self._by_id

    @property
    def num_unreported(self) -> int:
        """Requests that ended since the last ``commit``."""
        return len(self._ended)

    @property
    def has_work(self) -> bool:
        return bool(self._by_id or self._ended)

    def idle_for(self) -> float | None:
        """Seconds until ``schedule`` has something to do: 0 is now, None is not before another request comes."""
        if self.running or self._ended:
            return 0.0
        if not len(self.waiting):
            return None
        now = self.clock()
        return max(0.0, min(self._batching.ready_in(now, self.waiting), self._deadlines.next - now))

    # -- a step -------------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """The next step: decodes first; then chunks and newcomers together in rank order, while budget and seats last."""
        now = self.clock()
        self._expire(now)
        seats = self._batching.seats(now, len(self.running), self.waiting)
        step = self._step = Step(self._budget(seats), seats)
        for sequence in sorted(self.running, key=_is_chunk):
            if sequence.pending > 1:
                self._welcome(step, now, before=sequence.rank)
            self._continue(sequence, step)
        self._welcome(step, now, before=END_OF_LINE)
        self._speculation.add(step)
        rows = tuple([sequence.row(count, step.drafts.get(sequence, ())) for sequence, count in step.tokens.items()])
        return StepPlan(rows, tuple(step.copies))

    def commit(self, plan: StepPlan, result: StepResult) -> list[Update]:
        """Take in what a step produced: advance, index full blocks, end who is done. Returns all that changed."""
        now = self.clock()
        self.admission.observe(plan.num_tokens, result.seconds)
        self._speculation.observe(plan.num_tokens, result.seconds)
        self._pacing.observe(plan.num_tokens - plan.num_drafts, result.seconds)
        updates, self._ended = self._ended, []
        for i, row in enumerate(plan.rows):
            sequence = self._by_index.get(row.request)
            if sequence is None:  # ended while the step ran
                continue
            update = self._advance(sequence, row, i, result, now)
            if update.tokens and not sequence.first_token:
                sequence.first_token = now
                self._recorder.speak(sequence.request.id)
            if update.finish_reason is not None:
                self._finish(sequence)
            if update.tokens or update.finish_reason is not None or update.prompt_logprobs:
                updates.append(update)
        if plan.rows:
            self.cache.measure(self.running)
        return updates

    def pressure(self) -> Pressure:
        """Who was left waiting by the step that was committed last, and for what; how full the blocks are."""
        waiting = len(self.waiting)
        lacking = self._step.lacking(self.waiting.first(), self._batching.no_seat) if waiting else None
        return (waiting, lacking, *self.cache.use.last)

    # -- the rules ----------------------------------------------------------------------------------------------

    def _budget(self, seats: int) -> int:
        """Tokens of the next step."""
        chunks = sum(map(_is_chunk, self.running))
        return self._pacing.budget(len(self.running) - chunks, chunks + min(seats, len(self.waiting)))

    def _continue(self, sequence: Sequence, step: Step) -> None:
        """Give a running sequence what budget and blocks allow."""
        num_tokens = self._chunk(sequence.pending, step.budget)
        if num_tokens and sequence.state is State.RUNNING and self._make_room(sequence, num_tokens, step):
            step.add(sequence, num_tokens)

    def _welcome(self, step: Step, now: float, before: Rank) -> None:
        """Let waiting sequences ranked ``before`` join, in order: nobody overtakes one that does not fit."""
        while step.seats > 0 and step.budget > 0 and (newcomer := self.waiting.first()):
            if newcomer.rank >= min(before, step.barrier):
                return
            match = self.cache.match(newcomer.table, newcomer.tokens) if newcomer.may_match else Match()
            if self._waits_for_prefix(newcomer, len(match.blocks)):
                continue
            if not self._admit(newcomer, match, step, now):
                return
            step.seats -= 1

    def _chunk(self, pending: int, budget: int) -> int:
        """How many of ``pending`` tokens one sequence may compute in this step."""
        return min(pending, budget, self.config.long_prefill_token_threshold or budget)

    def _first_chunk(self, pending: int, budget: int) -> int:
        """The same for a newcomer: without chunked prefill it enters whole, or not yet (0).

        A resumed request may have outgrown a whole step; it enters in chunks all the same.
        """
        if self.config.enable_chunked_prefill or pending > self.config.max_num_batched_tokens:
            return self._chunk(pending, budget)
        return pending if pending <= budget else 0

    def _make_room(self, sequence: Sequence, num_tokens: int, step: Step) -> bool:
        """Blocks for ``num_tokens`` more, taken from worse-ranked sequences if need be; the worst-ranked one waits."""
        while not self.cache.grow(sequence.table, sequence.computed + num_tokens):
            victim = self.running[-1]
            if victim is sequence:
                step.starve(sequence)
                return False
            self._preempt(victim, step)
        return True

    def _waits_for_prefix(self, newcomer: Sequence, num_matched: int) -> bool:
        """Whether somebody is computing the newcomer's next block: then it steps aside until that is done."""
        if not newcomer.may_match:
            return False
        limit = (len(newcomer.tokens) - 1) // self.cache.block_size
        digest = self._in_flight.awaited(newcomer, newcomer.table.hashes[num_matched:limit])
        if digest is None:
            return False
        self.waiting.park(newcomer, digest)
        self._recorder.park(newcomer.request.id, self._in_flight.owner(digest).request.id)
        return True

    def _admit(self, newcomer: Sequence, match: Match, step: Step, now: float) -> bool:
        """Let a waiting sequence run if all its tokens fit into free blocks, taking some from a worse class if need be."""
        num_tokens = self._first_chunk(len(newcomer.tokens) - match.num_tokens, step.budget)
        if not num_tokens or not self._clear(newcomer, match, step):
            step.shortage = Shortage.BLOCKS if num_tokens else Shortage.TOKENS
            return False
        self.waiting.remove(newcomer)
        step.copies.extend(self.cache.adopt(newcomer.table, match))
        newcomer.computed = match.num_tokens
        grown = self.cache.grow(newcomer.table, match.num_tokens + num_tokens)
        assert grown, "a sequence that fits did not get its blocks"
        num_full = len(newcomer.tokens) // self.cache.block_size
        newcomer.table.extend_hashes(newcomer.tokens, self.cache.block_size, num_full)
        self._in_flight.claim(newcomer, self.cache.index, num_full)
        newcomer.state = State.RUNNING
        insort(self.running, newcomer, key=by_rank)
        self._batching.joined(1)
        self._account(newcomer, match, now)
        step.add(newcomer, num_tokens)
        return True

    def _clear(self, newcomer: Sequence, match: Match, step: Step) -> bool:
        """Whether all tokens of ``newcomer`` fit, after preempting running sequences of worse classes if that helps."""
        if self._fits(newcomer, match):
            return True
        victims = [s for s in self.running if s.rank[0] > newcomer.rank[0]]
        could_free = sum(len(s.table.blocks) for s in victims)
        if self.cache.blocks_for(len(newcomer.tokens)) > len(match.blocks) + self.cache.num_free + could_free:
            return False
        while victims and not self._fits(newcomer, match):
            self._preempt(victims.pop(), step)
        return self._fits(newcomer, match)

    def _fits(self, newcomer: Sequence, match: Match) -> bool:
        """Whether ``newcomer``'s tokens fit besides those that running sequences have yet to compute."""
        bespoken = sum(self.cache.blocks_for(len(s.tokens)) - len(s.table.blocks) for s in self.running if s.pending > 1)
        return self.cache.fits(newcomer.table, match.blocks, len(newcomer.tokens), bespoken)

    def _account(self, sequence: Sequence, match: Match, now: float) -> None:
        """Note what happened when ``sequence`` joined. A request counts once, however often it is preempted."""
        num_matched = match.num_tokens
        lookup = self.cache.explain(sequence.table, sequence.tokens, match if sequence.may_match else None)
        self._recorder.schedule(sequence.request.id, lookup)
        if not sequence.scheduled:
            sequence.scheduled = now
            sequence.num_cached = num_matched
            self.counters.prompt_tokens += sequence.num_prompt
            self.counters.cached_tokens += num_matched
            self.counters.queue_seconds += now - sequence.request.arrival
            self.cache.count(sequence.table, lookup, sequence.tokens)

    def _preempt(self, victim: Sequence, step: Step) -> None:
        """Take all blocks of ``victim``; it computes again later whatever is not cached by then."""
        self._recorder.preempt(victim.request.id, victim.computed)
        self._stop_running(victim)
        step.drop(victim)
        victim.state = State.WAITING
        victim.computed = 0
        victim.num_preemptions += 1
        self.counters.preemptions += 1
        self._batching.joined(-1)
        self.waiting.push(victim)

    def _stop_running(self, sequence: Sequence) -> None:
        at = bisect_left(self.running, sequence.rank, key=by_rank)
        assert self.running[at] is sequence
        del self.running[at]
        for digest in self._in_flight.release_all(sequence):
            self.waiting.wake(digest)
        self.cache.close(sequence.table, sequence.tokens, sequence.computed)

    def _advance(self, sequence: Sequence, row: Row, i: int, result: StepResult, now: float) -> Update:
        """Apply row ``i`` of a result."""
        update = Update(sequence, now)
        if result.errors and (error := result.errors.get(i)) is not None:
            update.finish_reason, update.error = FinishReason.ERROR, error
            return update
        if row.drafts:
            self._speculation.verified(sequence, len(row.drafts), len(result.tokens[i]) - 1)
        if result.prompt_logprobs and i in result.prompt_logprobs:
            update.prompt_logprobs, update.prompt_position = result.prompt_logprobs[i], row.start + 1
        end = row.start + row.num_tokens
        if result.tokens[i]:
            update.tokens, update.finish_reason = sequence.accept(result.tokens[i])
            if result.logprobs:
                update.logprobs = result.logprobs[i][: len(update.tokens)]
            end = min(end, len(sequence.tokens) - 1)  # of a draft, only what was verified; the last token is not fed yet
        elif sequence.request.sampling.max_tokens == 0 and end == sequence.num_prompt:
            update.finish_reason = FinishReason.LENGTH
        sequence.computed = end
        if end // self.cache.block_size > sequence.table.indexed:
            filled = self.cache.index_computed(sequence.table, sequence.tokens, end)
            for digest in self._in_flight.release(sequence, filled):
                self.waiting.wake(digest)
        return update

    def _expire(self, now: float) -> None:
        for sequence in self._deadlines.expired(now):
            was = "waiting" if sequence.state is State.WAITING else "running"
            tokens = f"{sequence.num_generated} of at most {sequence.request.sampling.max_tokens} tokens were out"
            message = f"the request's deadline passed while it was {was}; {tokens}: allow more time or ask for less"
            self.end(sequence.request.id, FinishReason.ERROR, DeadlineError(message))

    def _finish(self, sequence: Sequence) -> None:
        if sequence.state is State.RUNNING:
            self._stop_running(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.state = State.FINISHED
        del self._by_id[sequence.request.id]
        del self._by_index[sequence.index]

    # -- checks -------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Between steps: every record agrees with every other; raises AssertionError."""
        assert [s.rank for s in self.running] == sorted(s.rank for s in self.running)
        assert {*self.running, *self.waiting} == set(self._by_id.values()) == set(self._by_index.values())
        assert len(self.running) <= self.config.max_num_seqs
        for sequence in self.running:
            assert sequence.state is State.RUNNING
            assert 0 <= sequence.computed < len(sequence.tokens), "a running sequence has nothing pending"
            assert len(sequence.table.blocks) >= self.cache.blocks_for(sequence.computed)
        for sequence in self.waiting:
            assert sequence.state is State.WAITING
            assert not sequence.table.blocks
            assert sequence.computed == 0
        self.waiting.check_integrity()
        self._in_flight.check_integrity(self.running, self.waiting.parked_on())
        self.cache.check_integrity(s.table for s in self.running)


def _is_chunk(sequence: Sequence) -> bool:
    return sequence.pending > 1
