"""What would have made one request faster: candidates computed from the parts of its time, the best first.

Knows the settings it names and the parts of an explanation. What a change saves is an estimate for this request alone,
everything else being equal; what it costs others is said in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from forno.cache.misses import Miss
from forno.config import LEAST_MIXED, SchedulerConfig
from forno.observe.explain import ENGINE, Predict, by_tokens
from forno.observe.explanation import Explanation, Kind
from forno.observe.record import Shortage

LEAST_SHARE = 0.01
"""Of the request's time: what saves less is not worth saying."""
UNSURE, LESS = 0.5, 0.2
"""Weights in the order: of what is only an upper bound, and of asking for less, which helps always and costs what is asked."""
GENTLE_STRETCH = 1.25
"""``--mixed-step-stretch`` at which prompts hardly disturb."""


@dataclass(slots=True)
class Advice:
    """One change."""

    change: str
    """What to do, and what it costs."""
    saves: float
    """Seconds of this request's time."""
    flag: str = ""
    """The option to set, with its value; nothing where the client must change."""
    at_most: bool = False
    """Whether ``saves`` is an upper bound: what is really gained depends on traffic."""
    weight: float = 1.0
    """Of its seconds when it is compared with others."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the server runs with, as far as advice names it."""

    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    enable_prefix_caching: bool = True
    kv_tokens: int = 0
    """Tokens that the KV cache holds."""
    kv_bytes: int = 0
    """Its size; 0 if unknown."""


def advise(found: Explanation, settings: Settings, predict: Predict = by_tokens, count: int = 2) -> list[Advice]:
    """The ``count`` changes that would have helped most."""
    adviser = _Adviser(found, settings, predict)
    worth = [a for a in adviser.candidates() if a.saves > LEAST_SHARE * found.seconds]
    worth.sort(key=lambda a: a.saves * a.weight * (UNSURE if a.at_most else 1.0), reverse=True)
    chosen: dict[str, Advice] = {}
    for advice in worth:  # an option goes one way only
        chosen.setdefault(advice.flag.split(" ")[0] or advice.change, advice)
    return list(chosen.values())[:count]


class _Adviser:
    def __init__(self, found: Explanation, settings: Settings, predict: Predict) -> None:
        self.found, self.settings, self.predict = found, settings, predict

    def candidates(self) -> Iterator[Advice]:
        yield from self._queue()
        yield from self._memory()
        yield from self._prompt()
        yield from self._decode()
        yield from self._outside()

    def _waited(self, shortage: str) -> float:
        """Seconds in the queue, of those that were not about lost blocks."""
        queued = self.found.of(Kind.QUEUED)
        total = queued + self.found.of(Kind.PREEMPTED)
        return self.found.waited_for.get(shortage, 0.0) * (queued / total if total else 0.0)

    def _queue(self) -> Iterator[Advice]:
        found, config = self.found, self.settings.scheduler
        seats = config.max_num_seqs + found.record.ahead + 1
        saved = self._waited(Shortage.SEATS) - self._crowding(found.record.ahead + 1)
        yield Advice(
            f"Let more requests run at once: {found.record.ahead} waited before this one while all {config.max_num_seqs} seats "
            "were taken. Everybody's steps get longer, which is already subtracted here.",
            saved,
            f"--max-num-seqs {seats}",
        )
        stretch = config.mixed_step_stretch
        flag = (
            f"--mixed-step-stretch {2 * stretch - 1:g}"
            if stretch
            else f"--max-num-batched-tokens {2 * config.max_num_batched_tokens}"
        )
        yield Advice(
            "Give prompts a larger share of each step: it waited while another's prompt was computed in small chunks, beside "
            "answers. Those then get slower.",
            min(found.waited_for_decodes, self._waited(Shortage.TOKENS)) / 2,
            flag,
        )
        yield Advice(
            "Send one request with the shared prefix ahead of the burst: it waited until another had computed it.",
            self._waited(Shortage.PREFIX),
        )
        if config.batching != "continuous":
            yield Advice(
                f"Let requests join at any step: with {config.batching} batching it waited for a batch to begin.",
                self._waited(Shortage.BATCH),
                "--batching continuous",
            )

    def _crowding(self, more: int) -> float:
        """Seconds that ``more`` decodes in each of its decode steps would have added."""
        found = self.found
        if not found.decode_steps:
            return 0.0
        rows, context = max(1, round(found.decode_rows)), found.record.num_prompt + found.record.num_generated // 2
        now, then = self._decodes(context, rows, rows + more)
        return found.of(Kind.DECODE) * max(0.0, then / now - 1.0) if now > 0 else 0.0

    def _decodes(self, context: int, *rows: int) -> list[float]:
        """The cost of a step with so many sequences that decode after ``context`` tokens, for each number of ``rows``."""
        return [float(c) for c in self.predict([[context] * n for n in rows], [[1] * n for n in rows], rows)]

    def _memory(self) -> Iterator[Advice]:
        found, settings = self.found, self.settings
        lost = found.of(Kind.PREEMPTED, Kind.RECOMPUTE) + self._waited(Shortage.BLOCKS)
        needed = settings.kv_tokens + found.record.num_prompt + found.record.max_tokens
        what = "was preempted" if found.record.num_preemptions else "waited for free blocks"
        yield Advice(
            f"Give the KV cache more memory: it {what}, since {settings.kv_tokens} tokens did not suffice. "
            "An int8 cache (--kv-cache-dtype int8) holds about twice as many in the same memory.",
            lost,
            self._memory_flag(needed),
        )

    def _memory_flag(self, tokens: int) -> str:
        """The option that makes room for ``tokens``."""
        settings = self.settings
        if not (settings.kv_bytes and settings.kv_tokens):
            return "--kv-cache-memory"
        return f"--kv-cache-memory {settings.kv_bytes * tokens / settings.kv_tokens / 2**30:.2g}"

    def _prompt(self) -> Iterator[Advice]:
        found, record, lookup = self.found, self.found.record, self.found.lookup
        computed = record.num_prompt - record.num_cached
        if lookup is None or computed <= 1:
            return
        prefill = found.of(Kind.PREFILL, Kind.BESIDE) * (1.0 - 1.0 / computed)  # the last token is always computed
        rest = prefill * max(0, record.num_prompt - max(lookup.position, lookup.matched)) / computed
        if lookup.reason is Miss.EVICTED:
            change = (
                f"Keep more of what was computed: from token {lookup.matched} on, the prompt was cached once, and overwritten."
            )
            yield Advice(change, prefill, self._memory_flag(2 * self.settings.kv_tokens), at_most=True)
        elif lookup.reason is Miss.SALT:
            change = f"Send the same cache_salt: from token {lookup.matched} on, the prompt is cached for another one."
            yield Advice(change, prefill, at_most=True)
        elif lookup.reason is Miss.DIVERGED:
            change = (
                f"Put what changes from request to request at the prompt's end: others began alike and differ from token "
                f"{lookup.position} of {record.num_prompt} on."
            )
            yield Advice(change, rest, at_most=True)
        elif lookup.reason is Miss.DISABLED and not self.settings.enable_prefix_caching:
            yield Advice("Reuse prompts that begin alike.", prefill, "--enable-prefix-caching", at_most=True)
        each = 1000 * prefill / computed
        yield Advice(
            f"Send a shorter prompt: each token that is not cached takes {each:.2g} ms; half of them are counted here.",
            prefill / 2,
            weight=LESS,
        )

    def _decode(self) -> Iterator[Advice]:
        found, record = self.found, self.found.record
        yield from self._prompts_of_others()
        rows = round(found.decode_rows)
        if rows >= 2 and not self._waited(Shortage.SEATS):
            fewer = max(1, rows // 2)
            whole, half = self._decodes(record.num_prompt + record.num_generated // 2, rows, fewer)
            change = (
                f"Let fewer requests run at once: {rows} decoded together, and each step took the longer. The others then wait."
            )
            saved = found.of(Kind.DECODE) * (1.0 - half / whole) if whole > 0 else 0.0
            yield Advice(change, saved, f"--max-num-seqs {fewer}", at_most=True)
        if record.num_generated > 1:
            each = found.of(Kind.DECODE, Kind.SLOWED) / record.num_generated
            change = f"Ask for a shorter answer: each token took {1000 * each:.2g} ms; a quarter of them are counted here."
            yield Advice(change, each * record.num_generated / 4, weight=LESS)
        whose = "the schema of its own constraint" if record.constrained else "the schemas of others"
        yield Advice(f"Simplify {whose}: finding out which tokens it allows held up the steps.", found.of(Kind.CONSTRAINED))

    def _prompts_of_others(self) -> Iterator[Advice]:
        found, stretch = self.found, self.settings.scheduler.mixed_step_stretch
        if not found.slowed_steps:
            return
        each = found.slowed_tokens / found.slowed_steps
        if stretch > GENTLE_STRETCH:
            least = max(0.0, LEAST_MIXED - found.decode_rows) / each
            kept = self._spread(max((GENTLE_STRETCH - 1) / (stretch - 1), least))
            change = "Let prompts disturb running answers less: the prompts of others then take longer to begin."
            yield Advice(change, found.of(Kind.SLOWED) * (1 - kept), f"--mixed-step-stretch {GENTLE_STRETCH}")
        chunk = max(1, round(each / 4))
        change = f"Compute the prompts of others in smaller chunks than the {each:.0f} tokens of now: they then take longer."
        saved = found.of(Kind.SLOWED) * (1 - self._spread(chunk / each))
        yield Advice(change, saved, f"--long-prefill-token-threshold {chunk}", at_most=True)

    def _spread(self, kept: float) -> float:
        """What is left of the disturbance if each step has only a share ``kept`` of the prompt tokens: those of the others
        come in later steps instead, as far as there are any before this answer ends."""
        steps = self.found.slowed_steps
        return 1.0 if kept >= 1 else kept * min(self.found.decode_steps, steps / kept) / steps

    def _outside(self) -> Iterator[Advice]:
        found = self.found
        yield Advice("Read the stream faster: the answer was there and waited for its client.", found.of(Kind.CLIENT))
        loop = found.of(Kind.READING, Kind.RESPONDING) + self._waited(ENGINE)
        change = "Leave a core to the event loop: bytes waited to be read or sent while all cores computed."
        yield Advice(change, loop / 2, "--threads (one less)", at_most=True)
        yield Advice("Send a shorter prompt or a simpler schema: preparing them took that long.", found.of(Kind.TOKENIZING) / 2)
